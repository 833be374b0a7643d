// Backward passes where no event has a stack: the marks of the optimizer's steps tell the rounds;
// in each the backward begins where most is alive that the round itself makes and releases, at the
// scalar next to that (the gradient of the loss).
#include <algorithm>
#include <cstdlib>
#include <map>

#include "diagnose/phases/phases.h"

namespace plimsoll {
namespace {

/// The gradient of a scalar loss.
constexpr Bytes kRootGradient = 8;
/// Fewer events than this are no backward pass.
constexpr Position kLeastRun = 3;

/// Where the bytes that live and die within [first, until) are most.
Position Fullest(const Phases& p, std::span<const Allocation> round, Position until) {
  std::map<Position, Bytes> changes;
  for (const Allocation& a : round) {
    const Position released = p.Released(a);
    if (released >= until) continue;
    changes[a.made] += a.block;
    changes[released] -= a.block;
  }
  Bytes alive = 0;
  Bytes most = 0;
  Position at = kBefore;
  for (const auto& [position, change] : changes) {
    alive += change;
    if (alive <= most) continue;
    most = alive;
    at = position;
  }
  return at;
}

}  // namespace

void Phases::FindBackwardsWithoutStacks() {
  Position after = kBefore;
  for (const auto& [start, last] : marks.steps) {
    const std::span<const Allocation> round = Between(after, start);
    after = last;
    const Position fullest = Fullest(*this, round, start);
    if (fullest == kBefore) continue;
    Position backward = fullest;
    Position distance = kNotYet;
    for (const Allocation& a : round) {
      const Position away = std::abs(a.made - fullest);
      if (a.requested > kRootGradient || away > distance) continue;
      distance = away;
      backward = a.made;
    }
    const Position tail = round.back().made;
    if (tail - backward >= kLeastRun) backwards.push_back({.start = backward, .end = tail});
  }
}

}  // namespace plimsoll
