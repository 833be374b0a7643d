#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>

#include "train/gradients/recovery.h"
#include "train/graphs/graphed_step.h"

namespace plimsoll::train {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// The default stream cannot be captured. One a device for all graphs: libraries keep a workspace
/// for each stream that they have seen.
c10::cuda::CUDAStream SideStream(c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> known;
  const std::lock_guard lock(mutex);
  return known.try_emplace(index, c10::cuda::getStreamFromPool(false, index)).first->second;
}

at::Tensor HostRandomState() { return RandomState::Of(c10::kCPU).cpu(); }

}  // namespace

class GraphedStep::Captured {
 private:
  /// A graph and the memory that it works in.
  class Graph {
   public:
    explicit Graph(c10::DeviceIndex index)
        : index_(index),
          pool_(at::cuda::graph_pool_handle()),
          graph_(std::make_unique<at::cuda::CUDAGraph>()) {}

    template <class Function>
    void Capture(Function function) {
      // Other threads, such as a loader's, may go on to allocate.
      graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      try {
        function();
        graph_->capture_end();
      } catch (...) {
        Abandon();
        throw;
      }
    }

    void Replay() { graph_->replay(); }

   private:
    /// The stream must leave its capture. Where something spoiled that, LibTorch leaves the pool
    /// open, and the generator of random numbers as if the capture went on; and its allocators may
    /// ask the graph again, which is therefore never deleted.
    void Abandon() {
      const auto try_to = [](auto call) {
        try {
          call();
          return true;
        } catch (const std::exception&) {
          return false;
        }
      };
      if (try_to([&] { graph_->capture_end(); })) return;
      try_to([&] { allocator::endAllocateToPool(index_, pool_); });
      try_to([&] { allocator::releasePool(index_, pool_); });
      graph_.release();
      at::Generator generator =
          at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, index_));
      const std::lock_guard lock(generator.mutex());
      generator.graphsafe_set_state(at::make_generator<at::CUDAGeneratorImpl>(index_));
    }

    c10::DeviceIndex index_;
    at::cuda::MempoolId_t pool_;
    std::unique_ptr<at::cuda::CUDAGraph> graph_;
  };

 public:
  Captured(torch::nn::Module& model, Step step, const Batch& example, int warm_up)
      : parameters_(model.parameters()), graph_(example.tensors[0].get_device()) {
    for (const at::Tensor& tensor : example.tensors) {
      batch_.tensors.push_back(tensor.detach().clone());
    }
    const c10::Device device = batch_.tensors[0].device();
    const c10::cuda::CUDAGuard guard(device);
    c10::cuda::getCurrentCUDAStream().synchronize();
    const auto side = SideStream(device.index());
    const c10::cuda::CUDAStreamGuard on_side(side);
    StepUndo undo(model, device);
    try {
      WarmUp(step, undo, warm_up);
      side.synchronize();
      // What the warm-up used is kept for ordinary work; the graph has memory of its own.
      allocator::emptyCache();
      Capture(step);
    } catch (...) {
      undo.Undo();
      side.synchronize();
      allocator::emptyCache();
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
    graph_.Replay();
    // The graph writes into these. Somebody may have cleared the gradients since.
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = gradients_[i];
    }
    return results_;
  }

 private:
  void WarmUp(const Step& step, StepUndo& undo, int times) {
    const at::Tensor random = HostRandomState();
    for (int i = 0; i < times; ++i) {
      step(batch_);
      if (!random.equal(HostRandomState())) {
        throw NotCapturable("it draws random numbers on the host, which would never change");
      }
      // Gradients that are there would be added to; the graph is to write them.
      undo.Undo();
    }
  }

  void Capture(const Step& step) {
    // Weights that were cast before the capture would be used as they were then, and those that are
    // cast in it are the graph's.
    at::autocast::clear_cache();
    try {
      graph_.Capture([&] { results_ = step(batch_); });
    } catch (const std::exception& error) {
      at::autocast::clear_cache();
      if (IsOutOfMemory(error)) throw;
      const auto* known = dynamic_cast<const c10::Error*>(&error);
      throw NotCapturable(known != nullptr ? known->what_without_backtrace() : error.what());
    }
    at::autocast::clear_cache();
    for (at::Tensor& result : results_) result = result.detach();
  }

  Batch batch_;
  Tensors parameters_;
  Graph graph_;
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
