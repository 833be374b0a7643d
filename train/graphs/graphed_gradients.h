// The gradients of a training step as a CUDA graph, for as long as that gives what the step gives.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

#include "train/common/metrics.h"
#include "train/gradients/micro_batch.h"

namespace plimsoll::train {

class GraphedStep;

/// What Trainer replays in place of AccumulateGradients. One graph for one shape of batch, all its
/// pieces in it.
class GraphedGradients {
 public:
  /// Both must outlive it.
  GraphedGradients(torch::nn::Module& model, Metrics& metrics);
  ~GraphedGradients();
  GraphedGradients(const GraphedGradients&) = delete;
  GraphedGradients& operator=(const GraphedGradients&) = delete;

  /// As AccumulateGradients, by the same operations; the first time a graph is captured.
  /// Nothing, with nothing changed, where this batch is to go without: it has another shape than
  /// the graph's, a piece without weight, or is not on a CUDA device; the model's tensors, what of
  /// them is trained, or its mode changed; the step cannot be captured, or adds to metrics; or
  /// memory ran out lately.
  std::optional<at::Tensor> Run(const LossFunction& loss, const Batch& batch, const Pieces& pieces);

  /// The step is another one from now on, and its memory is needed.
  void Drop();
  /// Memory ran out. False where no graph was there to be dropped. For some steps there is none;
  /// each time for twice as many.
  bool RanOut();
  /// Whether the last call of Run gave a result.
  bool replayed() const { return replayed_; }

 private:
  /// What a graph depends on besides its batch.
  struct ModelParts;
  struct Layout {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    at::ScalarType type;
    bool operator==(const Layout&) const = default;
  };

  static std::vector<Layout> LayoutOf(const Batch& batch);
  bool Capture(const LossFunction& loss, const Batch& batch, const Pieces& pieces,
               const Shares& shares);
  /// Whether the graph is of this batch's shape and of the model as it is. One that has not been
  /// for long is dropped.
  bool Matches(const Batch& batch);

  torch::nn::Module& model_;
  Metrics& metrics_;
  std::unique_ptr<GraphedStep> graph_;
  std::unique_ptr<ModelParts> parts_;
  std::vector<Layout> layout_;
  bool replayed_ = false;
  /// The step cannot be captured.
  bool never_ = false;
  /// Steps still to go without a graph, and how many the next time.
  std::int64_t wait_ = 0;
  std::int64_t patience_ = 32;
  /// Steps since the graph matched.
  std::int64_t others_ = 0;
};

}  // namespace plimsoll::train
