#include "diagnose/attribution/sweep.h"

#include <algorithm>

#include "base/hash.h"

namespace plimsoll {
namespace {

/// Where each step begins: at its first batch or forward; the last ends with the record.
std::vector<Position> StepBounds(const Phases& p, const Attribution& attribution) {
  std::vector<Position> bounds;
  for (std::size_t k = 0; k < p.backwards.size(); ++k) {
    const Backward& b = p.backwards[k];
    if (k > 0 && p.backwards[k - 1].step == b.step) continue;
    Position begin = b.forward_start.value_or(b.start);
    for (const Allocation& a : p.Between(b.optimizer_end, begin)) {
      if (attribution.reason[p.IndexOf(a)] != Reason::kBatch) continue;
      begin = a.made;
      break;
    }
    bounds.push_back(begin);
  }
  // What ran out after the last step is not part of it.
  const bool over = p.fatal && !bounds.empty() && p.last_optimizer_end > bounds.back();
  bounds.push_back(over ? p.last_optimizer_end + 1 : p.end);
  return bounds;
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

  const std::vector<Position> bounds = StepBounds(p, attribution);
  std::size_t next_step = 0;
  for (Position i = 0; i < count; ++i) {
    if (next_step + 1 < bounds.size() && i == bounds[next_step]) {
      if (!sweep.steps.empty()) sweep.steps.back().end_allocated = allocated;
      sweep.steps.push_back({.first_event = i, .last_event = bounds[next_step + 1] - 1});
      sweep.steps.back().micro_batches = 0;
      ++next_step;
    }
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
    if (!sweep.steps.empty() && i <= sweep.steps.back().last_event) {
      StepReport& step = sweep.steps.back();
      step.peak_allocated = std::max(step.peak_allocated, allocated);
      step.peak_reserved = std::max(step.peak_reserved, reserved);
      step.end_allocated = allocated;
    }
  }
  for (const Backward& b : p.backwards) {
    if (static_cast<std::size_t>(b.step) >= sweep.steps.size()) continue;
    StepReport& step = sweep.steps[static_cast<std::size_t>(b.step)];
    ++step.micro_batches;
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
