#include "train/graphs/graphed_step.h"

namespace plimsoll::train {

class GraphedStep::Captured {};

GraphedStep::GraphedStep(torch::nn::Module&, Step, const Batch&, int) {
  TORCH_CHECK(false,
              "a step can be captured on a CUDA device only, and this build of plimsoll::train is "
              "without CUDA; run the step as it is");
}

GraphedStep::~GraphedStep() = default;

const Tensors& GraphedStep::Replay(const Batch&) { TORCH_CHECK(false, "nothing was captured"); }

}  // namespace plimsoll::train
