#include <c10/util/Exception.h>

#include "train/parallel/ranks/nccl.h"

namespace plimsoll::train {

c10::intrusive_ptr<c10d::Backend> MakeNccl(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                           int /*rank*/, int /*size*/,
                                           std::chrono::milliseconds /*time_limit*/) {
  TORCH_CHECK(false, "NCCL needs a build with CUDA; choose Transport::kGloo.");
  return nullptr;
}

}  // namespace plimsoll::train
