#include "diagnose/attribution/sweep.h"

#include <algorithm>

#include "base/hash.h"

namespace plimsoll {
namespace {

/// Where the program lets go of what it held: the first release, after the last allocation of all,
/// of something that is older than the last step or that is kept.
Position Teardown(const Phases& p, const Attribution& attribution, Position last_step) {
  const Position last_made = p.ledger.allocations.back().made;
  Position first = p.end;
  for (const Allocation& a : p.ledger.allocations) {
    const bool stays = attribution.category[p.IndexOf(a)] == Category::kKept;
    if ((stays || a.made < last_step) && p.Released(a) > last_made) {
      first = std::min(first, p.Released(a));
    }
  }
  return first;
}

Position StepBegin(const Phases& p, const Attribution& attribution, const Backward& b) {
  const Position forward = b.forward_start.value_or(b.start);
  for (const Allocation& a : p.Between(b.optimizer_end, forward)) {
    if (attribution.reason[p.IndexOf(a)] == Reason::kBatch) return a.made;
  }
  return forward;
}

/// From its first batch or forward on each step reaches to the next, the last one to the end of the
/// program; what ran out after it is not part of it.
std::vector<StepReport> StepRanges(const Phases& p, const Attribution& attribution) {
  std::vector<StepReport> steps;
  Position begin = 0;
  for (std::size_t k = 0; k < p.backwards.size(); ++k) {
    const Backward& b = p.backwards[k];
    if (k == 0 || p.backwards[k - 1].step != b.step) {
      begin = StepBegin(p, attribution, b);
      if (!steps.empty()) steps.back().last_event = begin - 1;
      steps.push_back({.first_event = begin, .micro_batches = 0});
    }
    ++steps.back().micro_batches;
  }
  if (steps.empty()) return steps;
  const bool over = p.fatal && p.last_optimizer_end > begin;
  steps.back().last_event = over ? p.last_optimizer_end : Teardown(p, attribution, begin) - 1;
  return steps;
}

/// What each category's tensors are counted at; see Sweep::peaks.
class Prices {
 public:
  Prices(const Phases& p, const Attribution& attribution) {
    HashMap<Bytes, std::pair<Bytes, Bytes>> sums;
    for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
      if (attribution.category[a] != Category::kParameters) continue;
      auto& [total, count] = sums[p.at(a).requested];
      total += p.at(a).block;
      ++count;
    }
    for (const auto& [size, sum] : sums) block_of_parameter_[size] = sum.first / sum.second;
  }

  Bytes Of(const Allocation& a, Category category) const {
    if (category == Category::kParameters) return a.block;
    if (category == Category::kGradients || category == Category::kOptimizerState) {
      const auto found = block_of_parameter_.find(a.requested);
      if (found != block_of_parameter_.end()) return found->second;
    }
    return std::min(a.requested, a.block);
  }

 private:
  HashMap<Bytes, Bytes> block_of_parameter_;
};

}  // namespace

Bytes Sweep::Highest(Position first, Position last) const {
  first = std::max<Position>(first, 0);
  last = std::min<Position>(last, static_cast<Position>(allocated.size()) - 1);
  if (first > last) return 0;
  return *std::max_element(allocated.begin() + first, allocated.begin() + last + 1);
}

Sweep SweepEvents(const Phases& p, const Attribution& attribution) {
  Sweep sweep;
  const auto count = static_cast<Position>(p.timeline.events.size());
  sweep.allocated.resize(static_cast<std::size_t>(count));
  std::array<Bytes, kCategoryCount> now{};
  Bytes reserved = p.ledger.initial_reserved;
  Bytes allocated = p.ledger.initial_allocated;
  const Prices prices(p, attribution);
  const auto counted = [&](AllocationIndex a) {
    return prices.Of(p.at(a), attribution.category[a]);
  };
  const auto category = [&](AllocationIndex a) {
    return static_cast<std::size_t>(attribution.category[a]);
  };
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (p.at(a).made != kBefore) break;
    if (p.at(a).released != kBefore) now[category(a)] += counted(a);
  }
  sweep.peaks = now;

  sweep.steps = StepRanges(p, attribution);
  std::size_t at_step = 0;
  for (Position i = 0; i < count; ++i) {
    const Event& e = p.timeline.events[static_cast<std::size_t>(i)];
    const AllocationIndex a = p.ledger.allocation_of_event[static_cast<std::size_t>(i)];
    if (a != Ledger::kNoAllocation) {
      const Allocation& x = p.at(a);
      if (x.made == i) {
        allocated += x.block;
        Bytes& held = now[category(a)];
        held += counted(a);
        Bytes& peak = sweep.peaks[category(a)];
        // What the program does while it unwinds after the end is not a peak of the run.
        if (held > peak && i <= p.end) peak = held;
      }
      if (x.released == i) {
        allocated -= x.block;
        now[category(a)] -= counted(a);
      }
    } else if (e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap) {
      reserved += e.size;
    } else if (e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap) {
      reserved -= e.size;
    }
    sweep.allocated[static_cast<std::size_t>(i)] = allocated;
    while (at_step < sweep.steps.size() && i > sweep.steps[at_step].last_event) ++at_step;
    if (at_step < sweep.steps.size() && i >= sweep.steps[at_step].first_event) {
      StepReport& step = sweep.steps[at_step];
      step.peak_allocated = std::max(step.peak_allocated, allocated);
      step.peak_reserved = std::max(step.peak_reserved, reserved);
      step.end_allocated = allocated;
    }
  }
  for (const Backward& b : p.backwards) {
    StepReport& step = sweep.steps[static_cast<std::size_t>(b.step)];
    Bytes activations = 0;
    for (const Allocation& a : p.Between(b.optimizer_end, b.start)) {
      const bool counts = attribution.category[p.IndexOf(a)] == Category::kActivations;
      if (counts && p.Released(a) > b.start) activations += a.block;
    }
    step.activations = std::max(step.activations, activations);
  }
  return sweep;
}

}  // namespace plimsoll
