// The product of a linear layer around which a loss is looked for, and the products of its
// backward.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "job/transforms/call_uses.h"
#include "job/transforms/linear_loss.h"

namespace plimsoll {

/// What may stand between the product and its loss.
struct OnTheWay {
  /// As a message has it: "its cross-entropy".
  std::string_view loss;
  /// A division by a number.
  bool scaled = false;
};

/// Writes what it finds into a loss. Its functions give the reason where they find nothing: "".
class LinearProduct {
 public:
  LinearProduct(const CallUses& uses, LinearLoss& found) : uses_(uses), found_(found) {}

  /// Back from what a loss reads to the product that made it.
  std::string FindFrom(const TensorUse& logits, const OnTheWay& way);
  /// The storage that the product makes.
  Storage logits() const { return logits_; }

  /// A product or a sum of the backward, which reads a gradient of the logits.
  std::string TakeGradient(std::size_t event, Storage gradient);
  /// Casts of hidden states and of the weight that nobody else reads are a part of the loss, too.
  void TakeOwnCasts();
  /// Whether nobody else reads what the loss makes for itself.
  std::string OnlyHere() const;

 private:
  std::string ReadProduct(const CallRecord& call, std::size_t left);
  TensorUse SourceOf(const TensorUse& use);
  TensorUse Final(const TensorUse& gradient);

  const CallUses& uses_;
  LinearLoss& found_;
  Storage logits_ = kElsewhere;
  /// Of hidden states and weight: the cast and what it makes.
  std::set<std::pair<std::size_t, Storage>> casts_;
};

}  // namespace plimsoll
