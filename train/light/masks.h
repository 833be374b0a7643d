// Pruning of single weights: the smallest become zero, and stay zero while the others are trained.
// It saves no memory and no time: the tensors stay as large, and the masks come on top. It shows
// which weights a model can do without; train/light/channels.h takes whole channels out.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace plimsoll::train {

struct MaskOptions {
  /// Parameters by their names in named_parameters(); * stands for any characters. Of those, the
  /// ones of floating point numbers with two dimensions or more: biases and norms stay.
  std::vector<std::string> parameters = {"*"};
  /// The smallest of all of them together; otherwise of each by itself.
  bool global = false;
};

struct MaskReport {
  struct Parameter {
    std::string name;
    std::int64_t weights = 0;
    std::int64_t zeros = 0;
  };

  std::vector<Parameter> parameters;
  std::int64_t weights = 0;
  std::int64_t zeros = 0;
  /// A byte for each weight.
  Bytes masks = 0;

  std::string ToString() const;
};

/// Masks of parameters. While it lives, their gradients are masked too. The parameters stay those
/// of the model, so an optimizer may have been made before.
class WeightMasks {
 public:
  /// Masks nothing yet. Throws c10::Error where no parameter is meant.
  explicit WeightMasks(torch::nn::Module& model, MaskOptions options = {});
  ~WeightMasks();
  WeightMasks(const WeightMasks&) = delete;
  WeightMasks& operator=(const WeightMasks&) = delete;

  /// Masks floor(fraction * weights) of them, smallest magnitude first, the earlier ones of equals;
  /// what is masked stays so, and counts. To go on with more than before prunes step by step. Sorts
  /// the weights, for which it takes about 24 bytes each of those that it sorts at once.
  MaskReport Prune(double fraction);

  /// To be called after each step of the optimizer: its momentum from before Prune, or a parameter
  /// that was loaded, may have moved a masked weight.
  void Apply();

  MaskReport Report() const;
  /// By the names of their parameters; true where the weight stays. To be saved, or copied into,
  /// and then applied.
  std::vector<std::pair<std::string, at::Tensor>> masks() const;

 private:
  struct Masked {
    std::string name;
    at::Tensor parameter;
    /// Shared with the hook, which may outlive this.
    std::shared_ptr<at::Tensor> mask;
    std::optional<unsigned> hook;
  };

  /// Masks `count` weights of all of these together.
  static void PruneTogether(std::span<const Masked> parameters, std::int64_t count);

  MaskOptions options_;
  std::vector<Masked> masked_;
};

}  // namespace plimsoll::train
