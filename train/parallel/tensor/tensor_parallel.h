// Tensor parallel: ranks share the layers of a model, each with a part of their weights, and
// compute every row together.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "train/light/light_layer.h"
#include "train/models/embedding.h"
#include "train/models/gpt.h"
#include "train/models/vocabulary_loss.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/tensor/vocabulary_parallel.h"

namespace plimsoll::train {

struct TensorParallelOptions {
  /// kSequence: what is not split works on this rank's positions, which saves its activations.
  /// Sequences must then be multiples of the number of ranks.
  Outside outside = Outside::kWhole;
};

/// Splits layers where they are. Each rank goes on with its part of their parameters, which the
/// optimizer is made of, so that it comes before the optimizer; all ranks get the same rows. A
/// model's parameters and gradients are those of one rank that has it all, in parts. Parameters
/// that are not split have the same gradients on all ranks.
class TensorParallel {
 public:
  /// The library's GPT, all of it: heads, hidden units of the MLP and vocabulary.
  TensorParallel(Gpt& model, Ranks& ranks, const TensorParallelOptions& options = {});
  /// Nothing yet. All ranks get the parameters and buffers of rank 0, and its random numbers, since
  /// what they compute alike must drop the same. The ranks must outlive what is done with the
  /// model, which stays split when this goes.
  TensorParallel(torch::nn::Module& model, Ranks& ranks, const TensorParallelOptions& options = {});
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  struct Columns {
    /// The outputs are so many groups of equal size, of each of which every rank gets its part: 3
    /// for queries, keys and values in one layer.
    std::int64_t groups = 1;
    /// All ranks have all outputs in the end, instead of the layer that follows being split by
    /// rows. For Outside::kWhole.
    bool gather = false;
  };
  /// Each rank makes its part of the outputs, with its part of the bias.
  void SplitColumns(LightLinearImpl& layer, const Columns& columns);
  void SplitColumns(LightLinearImpl& layer) { SplitColumns(layer, Columns()); }
  /// Each rank takes its part of the inputs, as a layer that is split by columns makes them. The
  /// bias is added once, to their sum.
  void SplitRows(LightLinearImpl& layer);
  /// Each rank has some rows of the table. The loss takes the table as its weight; null: nothing
  /// does.
  void SplitTable(EmbeddingTableImpl& table, VocabularyLossImpl* loss);
  /// A table of positions stays whole, and gives this rank's part where the sequence is split.
  void SplitPositions(EmbeddingTableImpl& table);

  Ranks& ranks() { return ranks_; }
  bool IsSplit(const at::Tensor& parameter) const { return Find(parameter) != nullptr; }
  /// Of what has the shape of a parameter, as its gradient or an optimizer's state: the whole, on
  /// all ranks; and this rank's part of a whole. The same tensor where the parameter is not split.
  at::Tensor WholeOf(const at::Tensor& parameter, const at::Tensor& part) const;
  at::Tensor OwnPart(const at::Tensor& parameter, const at::Tensor& whole) const;

  /// Scales the gradients down to a norm, over the whole model, of at most `most`; returns what it
  /// was. Where the gradients are split further, see ClipNorm of train/parallel/ranks/clip_norm.h.
  double ClipNorm(double most);

  /// RAII guard: the model is whole on every rank, and computes alone: to be saved,
  /// loaded or evaluated, not trained. On all ranks at once. What it has been made to hold is split
  /// again.
  class WholeModel {
   public:
    explicit WholeModel(TensorParallel& parallel);
    ~WholeModel();
    WholeModel(const WholeModel&) = delete;
    WholeModel& operator=(const WholeModel&) = delete;

   private:
    TensorParallel& parallel_;
    std::vector<at::Tensor> parts_;
  };

 private:
  struct Split {
    at::Tensor parameter;
    std::int64_t dimension = 0;
    std::int64_t groups = 1;
    /// Of the dimension, on all ranks.
    std::int64_t length = 0;
  };
  /// Makes a layer compute with its part, or again with all of it.
  using Switch = std::function<void(bool split)>;

  void SumGradientsOfParts();
  const Split* Find(const at::Tensor& parameter) const;
  void SplitParameter(const at::Tensor& parameter, std::int64_t dimension, std::int64_t groups = 1);
  void Add(Switch layer);

  torch::nn::Module& model_;
  Ranks& ranks_;
  Outside outside_;
  std::vector<Split> splits_;
  /// Their parameters; shared with what gradients call.
  std::shared_ptr<std::set<const void*>> split_parameters_;
  std::vector<Switch> layers_;
};

}  // namespace plimsoll::train
