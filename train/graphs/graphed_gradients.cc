#include "train/graphs/graphed_gradients.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "train/gradients/recovery.h"
#include "train/graphs/graphed_step.h"

namespace plimsoll::train {
namespace {

bool OnOneCudaDevice(const Batch& batch) {
  return std::ranges::all_of(batch.tensors, [&](const at::Tensor& tensor) {
    return tensor.is_cuda() && tensor.device() == batch.tensors[0].device();
  });
}

/// The batch, and where it goes in pieces the shares, as one more tensor.
Batch WithShares(const Batch& batch, const Shares& shares) {
  Batch both = batch;
  if (shares.numbers.size() > 1) both.tensors.push_back(at::tensor(shares.numbers, at::kDouble));
  return both;
}

}  // namespace

struct GraphedGradients::ModelParts {
  explicit ModelParts(const torch::nn::Module& model)
      : parameters(model.parameters()), buffers(model.buffers()), modules(model.modules()) {
    now = State();
  }

  /// The graph works in this memory, on these gradients, in these modes.
  std::vector<std::pair<const void*, bool>> State() const {
    std::vector<std::pair<const void*, bool>> state;
    for (const at::Tensor& one : parameters) {
      state.emplace_back(one.const_data_ptr(), one.requires_grad());
    }
    for (const at::Tensor& one : buffers) state.emplace_back(one.const_data_ptr(), false);
    for (const auto& one : modules) state.emplace_back(one.get(), one->is_training());
    return state;
  }
  bool Unchanged() const { return State() == now; }

  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<std::pair<const void*, bool>> now;
};

GraphedGradients::GraphedGradients(torch::nn::Module& model, Metrics& metrics)
    : model_(model), metrics_(metrics) {}
GraphedGradients::~GraphedGradients() = default;

std::vector<GraphedGradients::Layout> GraphedGradients::LayoutOf(const Batch& batch) {
  std::vector<Layout> layout;
  for (const at::Tensor& tensor : batch.tensors) {
    layout.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
  }
  return layout;
}

void GraphedGradients::Drop() {
  graph_.reset();
  others_ = 0;
}

bool GraphedGradients::RanOut() {
  if (!graph_) return false;
  Drop();
  wait_ = patience_;
  patience_ *= 2;
  return true;
}

bool GraphedGradients::Matches(const Batch& batch) {
  if (layout_ == LayoutOf(batch) && parts_->Unchanged()) {
    others_ = 0;
    return true;
  }
  if (++others_ < patience_) return false;
  Drop();
  patience_ *= 2;
  return false;
}

std::optional<at::Tensor> GraphedGradients::Run(const LossFunction& loss, const Batch& batch,
                                                const Pieces& pieces) {
  replayed_ = false;
  if (never_ || !OnOneCudaDevice(batch)) return std::nullopt;
  if (wait_ > 0) {
    --wait_;
    return std::nullopt;
  }
  if (graph_ && !Matches(batch)) return std::nullopt;
  const Shares shares = SharesOf(batch, pieces);
  if (std::ranges::count(shares.numbers, 0) > 0) return std::nullopt;
  if (!graph_ && !Capture(loss, batch, pieces, shares)) return std::nullopt;
  const Tensors& results = graph_->Replay(WithShares(batch, shares));
  replayed_ = true;
  return results[0];
}

bool GraphedGradients::Capture(const LossFunction& loss, const Batch& batch, const Pieces& pieces,
                               const Shares& shares) {
  const auto step = [&](const Batch& both) {
    Batch rows = both;
    Shares given = shares;
    if (both.tensors.size() > batch.tensors.size()) {
      given.on_device = both.tensors.back();
      rows.tensors.pop_back();
    }
    return Tensors{AccumulateGradients(loss, rows, pieces, given)};
  };
  try {
    const c10::Device device = batch.tensors[0].device();
    graph_ = std::make_unique<GraphedStep>(model_, step, WithShares(batch, shares).To(device));
  } catch (const NotCapturable&) {
    never_ = true;
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    wait_ = patience_;
    patience_ *= 2;
  }
  // A replay would add nothing to them.
  if (!metrics_.empty()) {
    graph_.reset();
    never_ = true;
  }
  metrics_.Clear();
  layout_ = LayoutOf(batch);
  parts_ = std::make_unique<ModelParts>(model_);
  return graph_ != nullptr;
}

}  // namespace plimsoll::train
