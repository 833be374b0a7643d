// What the steps make: by the phase that makes it and the phase that releases it.
#include "diagnose/attribution/attributor.h"

namespace plimsoll {

void Attributor::AttributeTheRest() {
  for (const Allocation& x : p_.Between(kBefore, kNotYet)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (Done(a)) continue;
    if (p_.is_gradient[a] && !IsKept(a)) {
      Set(a, Category::kGradients, Reason::kGradient);
      continue;
    }
    const std::size_t gap = p_.GapOf(x.made);
    const bool in_backward = gap < p_.backwards.size() && x.made >= p_.backwards[gap].start &&
                             (!p_.framed || p_.ThreadOf(x) == Thread::kBackward);
    if (in_backward) {
      AttributeInBackward(a, p_.backwards[gap]);
    } else {
      AttributeOutside(a, gap);
    }
  }
}

void Attributor::AttributeInBackward(AllocationIndex a, const Backward& b) {
  const Allocation& x = p_.at(a);
  const std::uint16_t signs = p_.Signs(x);
  const Position released = p_.Released(x);
  if (released <= b.end) {
    if ((signs & kSignCheckpoint) != 0) {
      Set(a, Category::kActivations, Reason::kRecomputed);
    } else if ((signs & kSignUnpack) != 0) {
      Set(a, Category::kActivations, Reason::kRestored);
    } else {
      const bool gathered = (signs & kSignFsdp) != 0;
      Set(a, Category::kTemporaries, gathered ? Reason::kGathered : Reason::kShortLived);
    }
  } else if (IsKept(a)) {
    Set(a, Category::kKept, Reason::kGrowing);
  } else if (p_.CutShort(b)) {
    // A backward that was cut short: what it had at that moment.
    Set(a, Category::kTemporaries, Reason::kShortLived);
  } else if (released == kNotYet || p_.Outlived(x) >= 2) {
    Set(a, Category::kTemporaries, Reason::kWorkspace);
  } else {
    Set(a, Category::kTemporaries, Reason::kShortLived);
  }
}

void Attributor::AttributeOutside(AllocationIndex a, std::size_t gap) {
  const Allocation& x = p_.at(a);
  const std::uint16_t signs = p_.Signs(x);
  const Position released = p_.Released(x);
  if (IsKept(a)) return Set(a, Category::kKept, Reason::kGrowing);
  const bool last = gap >= p_.backwards.size();
  const Position backward_start = last ? p_.end : p_.backwards[gap].start;
  if (released < backward_start) {
    if (IsCutOff(x)) return Set(a, Category::kActivations, Reason::kForwardUnfinished);
    const bool gathered = (signs & kSignFsdp) != 0;
    return Set(a, Category::kTemporaries, gathered ? Reason::kGathered : Reason::kShortLived);
  }
  if (!last && released <= p_.backwards[gap].end) {
    // An optimizer that steps inside the backward.
    const bool steps = x.made >= backward_start && (signs & kSignOptimizer) != 0;
    if (steps) return Set(a, Category::kTemporaries, Reason::kShortLived);
    if ((signs & kSignFsdp) != 0) return Set(a, Category::kTemporaries, Reason::kGathered);
    return Set(a, Category::kActivations, Reason::kReleasedInBackward);
  }
  if (!last && p_.CutShort(p_.backwards[gap]) && p_.backwards[gap].forward_start &&
      x.made >= *p_.backwards[gap].forward_start && p_.ThreadOf(x) == Thread::kMain) {
    return Set(a, Category::kActivations, Reason::kForwardUnfinished);
  }
  const Position optimizer_end = last ? p_.last_optimizer_end : p_.backwards[gap].optimizer_end;
  const bool in_optimizer = gap > 0 && x.made <= optimizer_end && p_.ThreadOf(x) != Thread::kOther;
  if ((signs & kSignOptimizer) != 0 || in_optimizer) {
    return Set(a, Category::kOptimizerState, Reason::kOptimizerPhase);
  }
  if ((signs & kSignScalerStep) != 0) {
    return Set(a, Category::kOptimizerState, Reason::kScaler);
  }
  if ((signs & kSignDdp) != 0 && (signs & kSignModuleCall) == 0) {
    return Set(a, Category::kGradients, Reason::kGradientBucket);
  }
  if (last) return AttributeAfterLast(a);
  AttributeOutliving(a, gap);
}

/// For each out-of-memory that the program caught, the first allocation of a module among those
/// that went with it.
void Attributor::FindCutOffForwards() {
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const std::optional<Position> oom = p_.UnwoundBy(x);
    const bool in_call = (p_.Signs(x) & kSignModuleCall) != 0;
    if (oom && in_call && p_.GapOf(x.made) == p_.GapOf(*oom)) cut_off_.emplace(*oom, x.made);
  }
}

/// Of a forward that ran out of memory, which the program caught. What is made after the first
/// module and outside all of them is the loss's.
bool Attributor::IsCutOff(const Allocation& x) const {
  const std::optional<Position> oom = p_.UnwoundBy(x);
  if (!oom) return false;
  const auto found = cut_off_.find(*oom);
  return found != cut_off_.end() && x.made >= found->second;
}

/// Made before a backward and alive after it.
void Attributor::AttributeOutliving(AllocationIndex a, std::size_t gap) {
  const Allocation& x = p_.at(a);
  const std::uint16_t signs = p_.Signs(x);
  const std::size_t lived = p_.Outlived(x);
  const bool stays = p_.Released(x) == kNotYet;
  const std::optional<Position> forward = p_.backwards[gap].forward_start;
  const bool in_call = (signs & kSignModuleCall) != 0;
  if (forward && x.made < *forward) {
    // Micro-batches are pieces of one batch, which lives as long as the step.
    const bool one_step = !stays && p_.backwards[gap + lived - 1].step == p_.backwards[gap].step;
    if ((lived >= 3 && !one_step) || (stays && lived >= 2)) return;  // no batch, no model: open
    if (in_call) return Set(a, Category::kTemporaries, Reason::kShortLived);
    input_sites_.insert(SiteOf(x));
    return Set(a, Category::kInputs, Reason::kBatch);
  }
  // A pipeline has several micro-batches in flight: each is released in a later backward.
  const Position released = p_.Released(x);
  const std::size_t ends_in = stays ? p_.backwards.size() : p_.GapOf(released);
  if (in_call && ends_in < p_.backwards.size() && released >= p_.backwards[ends_in].start) {
    return Set(a, Category::kActivations, Reason::kReleasedInBackward);
  }
  const bool more_follow = gap + 1 < p_.backwards.size();
  if (lived >= 2 || (stays && (more_follow || IsCublasSize(x.requested)))) {
    return Set(a, Category::kTemporaries, Reason::kWorkspace);
  }
  Set(a, Category::kActivations, Reason::kForwardResult);
}

/// Made after the last backward. What is computed there outside of the model, weights that are put
/// together or a checkpoint that is read, is no batch: other lines make it, and not small things
/// alone.
void Attributor::AttributeAfterLast(AllocationIndex a) {
  constexpr Bytes kSmall = kMiB;
  const Allocation& x = p_.at(a);
  const bool in_call = (p_.Signs(x) & kSignModuleCall) != 0;
  if (!p_.fatal) return;
  if (!large_after_last_) {
    large_after_last_.emplace();
    for (const Allocation& y : p_.Between(x.made - 1, p_.end)) {
      if (y.requested > kSmall) large_after_last_->insert(SiteOf(y));
    }
  }
  forward_after_last_ |= in_call;
  const bool batch = input_sites_.empty() || input_sites_.contains(SiteOf(x)) ||
                     !large_after_last_->contains(SiteOf(x));
  // A loss is computed outside of the model.
  if (in_call || (forward_after_last_ && !batch)) {
    return Set(a, Category::kActivations, Reason::kForwardUnfinished);
  }
  if (p_.framed && batch) return Set(a, Category::kInputs, Reason::kBatch);
}

}  // namespace plimsoll
