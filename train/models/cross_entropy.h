// Cross-entropy of a linear layer over a large vocabulary, without its logits: they are made a few
// rows at a time, and their gradients at once, while they are there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace plimsoll::train {

/// A vocabulary of which each of several ranks has some classes, one after the other
/// (train/parallel/tensor/vocabulary_parallel.h): what they do together, all in the same order.
class SplitVocabulary {
 public:
  virtual ~SplitVocabulary() = default;

  /// The first class of this rank; the most that a rank has; those of all ranks.
  virtual std::int64_t begin() const = 0;
  virtual std::int64_t most() const = 0;
  virtual std::int64_t all() const = 0;

  /// The hidden states as each rank needs them; their gradient is the sum over ranks.
  virtual at::Tensor Enter(const at::Tensor& hidden) const = 0;
  /// Every rank's, along a new first dimension; without gradients.
  virtual at::Tensor Gather(const at::Tensor& part) const = 0;
  /// Logits of all classes, of those of this rank.
  virtual at::Tensor Join(const at::Tensor& logits) const = 0;
};

struct LinearCrossEntropyOptions {
  enum class Reduction { kMean, kSum };

  /// Rows of logits at a time. 0: so many that they take about as much as the hidden states or, if
  /// that is more, as the weight's gradient, which is there anyway; but then a quarter at most.
  std::int64_t chunk = 0;
  /// A row with this target counts for nothing, whatever it holds.
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
  /// In [0, 1]: the share of the target that is spread evenly over all classes.
  double label_smoothing = 0;
  /// [V], of floating point numbers, on the device of the others: what an error in each class
  /// counts. The mean is then over the weights of the targets, as in torch. Gets no gradient.
  std::optional<at::Tensor> class_weights;
  /// To the loss is added this times the mean (or sum) over the rows that count of
  /// logsumexp(logits)^2, not weighted by class; it keeps the logits from drifting.
  double z_loss = 0;
  /// Above 0, the logits are soft_cap * tanh(logits / soft_cap), before all else. Takes a chunk's
  /// logits more.
  double soft_cap = 0;
  /// Where it is set, the weight and the bias are of this rank's classes; class weights are of all.
  std::shared_ptr<const SplitVocabulary> split;
};

/// cross_entropy(linear(hidden, weight, bias), targets) for hidden [..., d], weight [V, d], bias
/// [V] and targets [...] of int64. The loss is fp32 (fp64 for fp64); the products are made in the
/// autocast type where autocast is on. Gradients are computed in forward, for those that want one,
/// so that backward can be called once, and not differentiated. With no row that counts the mean is
/// not a number, as in torch. Throws c10::Error for options and shapes that do not go
/// together.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const at::Tensor& targets,
                              const LinearCrossEntropyOptions& options = {});

}  // namespace plimsoll::train
