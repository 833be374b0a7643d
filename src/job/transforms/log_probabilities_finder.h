// Follows one gather to the linear layer that makes what it reads, and from there to everything
// that the job makes of those logits: log-probabilities of single classes, and entropies.
#pragma once

#include <optional>
#include <set>

#include "job/transforms/call_uses.h"
#include "job/transforms/linear_loss.h"

namespace plimsoll {

class LogProbabilitiesFinder {
 public:
  explicit LogProbabilitiesFinder(const CallUses& uses) : uses_(uses) {}

  /// Nothing where no linear layer makes what it reads, or that layer was found before.
  std::optional<Result<LinearLoss>> From(std::size_t gather);

 private:
  const CallUses& uses_;
  /// Logits.
  std::set<Storage> seen_;
};

}  // namespace plimsoll
