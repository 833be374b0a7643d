// A loss over the output of a linear layer, found among the calls of a captured step: the product
// with the head's weight, casts and copies of the logits, what the loss makes of them; and in the
// backward everything up to the gradients of the hidden states, the weight and the bias.
#pragma once

#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// log_softmax and nll_loss: one number.
struct CrossEntropy {
  /// Divided by the number of rows that count.
  bool mean = true;
  TensorUse loss;
  /// Its gradient.
  TensorUse outer;
};

/// A number or two for each row, of which the job goes on to make a loss: the log-probability of
/// one class, and the entropy.
struct LogProbabilities {
  /// A part of the rows where positions were sliced off behind the layer.
  Number rows;
  /// Divided by a temperature.
  bool scaled = false;
  /// It stands in one of the ways that plimsoll.apply recognises.
  bool applies = true;
  TensorUse own;
  /// Not on the device where the job has none.
  TensorUse entropy;
  /// Their gradients; not on the device where the job wants none.
  TensorUse of_own;
  TensorUse of_entropy;
};

struct LinearLoss {
  /// The calls that it consists of, as indices into the events.
  std::set<std::size_t> events;
  /// Of those, the ones in whose place it can be computed otherwise. A loss without a gradient has
  /// no backward.
  std::size_t forward = 0;
  std::optional<std::size_t> backward;
  /// What those calls make and nothing else sees.
  std::set<Storage> inner;

  /// Rows by width, as handed to the layer: before autocast makes them smaller.
  TensorUse hidden;
  /// The parameter, and as the product and that of the backward read it, maybe in a smaller type.
  TensorUse weight;
  TensorUse read_weight;
  /// Not on the device where the layer has none.
  TensorUse bias;
  TensorUse labels;
  Number rows;
  Number width;
  Number classes;
  /// The module that makes the logits; nothing where the capture does not tell.
  StringId layer;
  /// Of the product.
  DType type = DType::kFloat32;

  /// What is left of it: what its kind makes, and the gradients that the job wants.
  std::variant<CrossEntropy, LogProbabilities> kind;
  TensorUse hidden_gradient;
  TensorUse weight_gradient;
  TensorUse bias_gradient;
};

/// Bytes at the first captured batch size.
Bytes LogitsOf(const LinearLoss& loss);

/// What a variant has of them, in order.
struct LinearLosses {
  std::vector<LinearLoss> found;
  /// A loss that is none: its logits at the first captured batch size, and why.
  struct Refused {
    Bytes logits = 0;
    Error why;
  };
  std::vector<Refused> refused = {};
};
LinearLosses LookForLinearLosses(const Job& job, const Variant& variant);

/// An error where there is none, which says why.
Result<std::vector<LinearLoss>> FindLinearLosses(const Job& job, const Variant& variant);

}  // namespace plimsoll
