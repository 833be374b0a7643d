#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "train/graphed_step.h"
#include "train/recovery.h"

namespace plimsoll::train {

class GraphedStep::Captured {
 public:
  Captured(torch::nn::Module& model, Step step, const Batch& example, int warm_up)
      : parameters_(model.parameters()) {
    for (const at::Tensor& tensor : example.tensors) {
      batch_.tensors.push_back(tensor.detach().clone());
    }
    const c10::Device device = batch_.tensors[0].device();
    const c10::cuda::CUDAGuard guard(device);
    const auto outside = c10::cuda::getCurrentCUDAStream();
    // The default stream cannot be captured.
    const auto side = c10::cuda::getStreamFromPool(false, device.index());
    outside.synchronize();
    const c10::cuda::CUDAStreamGuard on_side(side);
    StepUndo undo(model, device);
    try {
      WarmUp(step, undo, warm_up);
      side.synchronize();
      Capture(step);
    } catch (...) {
      undo.Undo();
      throw;
    }
    for (at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
    undo.Undo();
    side.synchronize();
  }

  const Tensors& Replay(const Batch& batch) {
    CheckSameShapes(batch_, batch);
    const c10::cuda::CUDAGuard guard(batch_.tensors[0].device());
    for (std::size_t i = 0; i < batch_.tensors.size(); ++i) {
      batch_.tensors[i].copy_(batch.tensors[i], true);
    }
    graph_.replay();
    // The graph writes into these. Somebody may have cleared the gradients since.
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = gradients_[i];
    }
    return results_;
  }

 private:
  void WarmUp(const Step& step, StepUndo& undo, int times) {
    for (int i = 0; i < times; ++i) {
      step(batch_);
      // Gradients that are there would be added to; the graph is to write them.
      undo.Undo();
    }
  }

  void Capture(const Step& step) {
    // Weights that were cast before the capture would be used as they were then, and those that are
    // cast in it are the graph's.
    at::autocast::clear_cache();
    // Other threads, such as a loader's, may go on to allocate.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      results_ = step(batch_);
    } catch (...) {
      at::autocast::clear_cache();
      EndFailed();
      throw;
    }
    at::autocast::clear_cache();
    graph_.capture_end();
    for (at::Tensor& result : results_) result = result.detach();
  }

  /// The stream must leave its capture, however that ends.
  void EndFailed() {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
    }
  }

  Batch batch_;
  Tensors parameters_;
  at::cuda::CUDAGraph graph_;
  Tensors gradients_;
  Tensors results_;
};

GraphedStep::GraphedStep(torch::nn::Module& model, Step step, const Batch& example, int warm_up) {
  TORCH_CHECK(!example.tensors.empty() && example.tensors[0].is_cuda(),
              "a step can be captured on a CUDA device only, and this batch is ",
              example.tensors.empty() ? "empty" : "on the CPU", "; run the step as it is");
  captured_ = std::make_unique<Captured>(model, std::move(step), example, warm_up);
}

GraphedStep::~GraphedStep() = default;

const Tensors& GraphedStep::Replay(const Batch& batch) { return captured_->Replay(batch); }

}  // namespace plimsoll::train
