// Backward passes where no event has a stack: the marks of the optimizer's steps tell the rounds,
// the last tiny allocation (the gradient of the loss) tells where in each the backward begins.
#include <algorithm>

#include "diagnose/phases.h"

namespace plimsoll {
namespace {
/// The gradient of a scalar loss.
constexpr Bytes kRootGradient = 8;
/// Fewer events than this are no backward pass.
constexpr Position kLeastRun = 3;
}  // namespace

void Phases::FindBackwardsWithoutStacks() {
  Position after = kBefore;
  for (const auto& [start, last] : marked_steps_) {
    const std::span<const Allocation> round = Between(after, start);
    after = last;
    // Gradients are made in the backward and alive when the optimizer starts; the backward begins
    // at the last scalar before the first of the run of survivors that ends the round.
    Position backward = kBefore;
    Position tail = kBefore;
    Bytes released_inside = 0;
    for (const Allocation& a : round) {
      if (a.requested <= kRootGradient) backward = a.made;
      tail = a.made;
    }
    if (backward == kBefore || tail - backward < kLeastRun) continue;
    for (const Allocation& a : round) {
      if (Released(a) > backward && Released(a) < start) released_inside += a.block;
    }
    if (released_inside > 0) backwards.push_back({.start = backward, .end = tail});
  }
}

}  // namespace plimsoll
