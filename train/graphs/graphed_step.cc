#include "train/graphs/graphed_step.h"

namespace plimsoll::train {

NotCapturable::NotCapturable(std::string_view why)
    : c10::Error({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                 c10::str("this step cannot be captured as a CUDA graph: ", why)) {}

void CheckSameShapes(const Batch& captured, const Batch& given) {
  TORCH_CHECK(captured.tensors.size() == given.tensors.size(), "a CUDA graph was captured for ",
              captured.tensors.size(), " tensors a batch, and gets ", given.tensors.size());
  for (std::size_t i = 0; i < given.tensors.size(); ++i) {
    const at::Tensor& want = captured.tensors[i];
    const at::Tensor& have = given.tensors[i];
    TORCH_CHECK(want.sizes() == have.sizes() && want.scalar_type() == have.scalar_type(),
                "a CUDA graph has fixed shapes: tensor ", i, " of the batch was ", want.dtype(),
                " ", want.sizes(), " at the capture and is now ", have.dtype(), " ", have.sizes(),
                "; run this batch without the graph");
  }
}

}  // namespace plimsoll::train
