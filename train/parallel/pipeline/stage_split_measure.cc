// Running layers one at a time, to see what each takes.
#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <algorithm>
#include <set>

#include "train/budget/budget.h"
#include "train/checkpointing/random_state.h"
#include "train/common/wall_clock.h"
#include "train/parallel/pipeline/stage_split.h"

namespace plimsoll::train {
namespace {

Tensors TrainedOf(const ModelLayer& layer) {
  Tensors trained = layer.parameters();
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return trained;
}

double SecondsOn(c10::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
  return Seconds();
}

/// RAII guard: a layer is on the device; afterwards it is where it was.
class Borrowed {
 public:
  Borrowed(const ModelLayer& layer, c10::Device device) : layer_(layer) {
    const Tensors parameters = layer.parameters();
    if (!parameters.empty()) home_ = parameters[0].device();
    for (const at::Tensor& parameter : parameters) gradients_.push_back(parameter.grad());
    for (const at::Tensor& buffer : layer.buffers()) buffers_.push_back(buffer.detach().clone());
    ClearGradients();
    Move(device);
  }
  ~Borrowed() {
    ClearGradients();
    Move(home_);
    const Tensors parameters = layer_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = gradients_[i];
    }
    const Tensors buffers = layer_.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].detach().copy_(buffers_[i]);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  void ClearGradients() {
    for (const at::Tensor& parameter : layer_.parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

 private:
  void Move(c10::Device device) {
    for (const auto& [name, module] : layer_.modules) module->to(device);
  }

  const ModelLayer& layer_;
  c10::Device home_ = c10::kCPU;
  Tensors gradients_;
  Tensors buffers_;
};

class Measuring {
 public:
  Measuring(const Batch& rows, c10::Device device)
      : rows_(rows.To(device)), device_(device), budget_(device, std::nullopt) {}

  /// Fills in what running it shows, and makes its result what the next one is given.
  void Run(const ModelLayer& layer, LayerFigures& figures) {
    Tensors given;
    for (const at::Tensor& tensor : given_) {
      given.push_back(tensor.detach().requires_grad_(tensor.is_floating_point()));
    }
    const PeakScope scope(budget_);
    const Bytes before = budget_.figures().allocated;
    const double begin = SecondsOn(device_);
    Tensors result = layer.forward(given, rows_);
    figures.saved = budget_.figures().allocated - before;
    Tensors next;
    for (const at::Tensor& tensor : result) next.push_back(tensor.detach());
    Backward(result);
    figures.seconds = SecondsOn(device_) - begin;
    const Bytes known = before + figures.saved + BytesOf(TrainedOf(layer));
    figures.passing = std::max<Bytes>(0, scope.figures().peak_allocated - known);
    next_ = std::move(next);
  }

  void GoOn() { given_ = std::move(next_); }
  Bytes given() const { return BytesOf(given_); }

 private:
  static void Backward(Tensors& result) {
    Tensors roots;
    Tensors gradients;
    for (const at::Tensor& tensor : result) {
      if (!tensor.requires_grad()) continue;
      roots.push_back(tensor);
      gradients.push_back(at::ones_like(tensor));
    }
    result.clear();
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
  }

  Batch rows_;
  c10::Device device_;
  Budget budget_;
  Tensors given_;
  Tensors next_;
};

}  // namespace

std::vector<LayerFigures> MeasureLayers(const ModelLayers& layers, const Batch& micro_batch,
                                        const MeasureOptions& options) {
  micro_batch.CheckRows();
  const torch::autograd::AutoGradMode with_grad(true);
  const RandomState random = RandomState::Of(options.device);
  Measuring measuring(micro_batch, options.device);
  std::vector<LayerFigures> all;
  std::set<const void*> seen;
  for (const ModelLayer& layer : layers) {
    LayerFigures figures;
    figures.kept = BytesOf(layer.buffers());
    for (const at::Tensor& parameter : layer.parameters()) {
      const bool is_new = seen.insert(parameter.unsafeGetTensorImpl()).second;
      const double times = parameter.requires_grad() ? 2 + options.optimizer_state : 1;
      if (options.shared_once && !is_new) continue;
      figures.kept += static_cast<Bytes>(static_cast<double>(parameter.nbytes()) * times);
    }
    figures.given = measuring.given();
    Borrowed borrowed(layer, options.device);
    // The first time is longer: kernels are loaded, workspaces are made.
    measuring.Run(layer, figures);
    borrowed.ClearGradients();
    measuring.Run(layer, figures);
    measuring.GoOn();
    all.push_back(figures);
  }
  random.Restore();
  return all;
}

}  // namespace plimsoll::train
