// A cross-entropy over the output of a linear layer, found among the calls of a captured step: the
// product with the head's weight, casts and copies of the logits, log_softmax and nll_loss; and in
// the backward everything up to the gradients of the hidden states, the weight and the bias.
#pragma once

#include <set>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct LinearLoss {
  /// The calls that it consists of, as indices into the events.
  std::set<std::size_t> events;
  /// Of nll_loss in the forward and in the backward, among them.
  std::size_t forward = 0;
  std::size_t backward = 0;
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
  /// Divided by the number of rows that count.
  bool mean = true;

  /// What is left of it: the loss, and the gradients that the job wants.
  TensorUse loss;
  TensorUse outer;
  TensorUse hidden_gradient;
  TensorUse weight_gradient;
  TensorUse bias_gradient;
};

/// What a variant has of them, in order.
struct LinearLosses {
  std::vector<LinearLoss> found;
  /// A cross-entropy that is none: its logits at the first captured batch size, and why.
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
