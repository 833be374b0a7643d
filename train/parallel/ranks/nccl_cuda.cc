#include "train/parallel/ranks/nccl.h"

#include <c10/util/Exception.h>

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace plimsoll::train {

c10::intrusive_ptr<c10d::Backend> MakeNccl(
    [[maybe_unused]] const c10::intrusive_ptr<c10d::Store>& store, [[maybe_unused]] int rank,
    [[maybe_unused]] int size, [[maybe_unused]] std::chrono::milliseconds time_limit) {
#ifdef USE_C10D_NCCL
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = time_limit;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
#else
  TORCH_CHECK(false, "this LibTorch is built without NCCL; choose Transport::kGloo.");
  return nullptr;
#endif
}

}  // namespace plimsoll::train
