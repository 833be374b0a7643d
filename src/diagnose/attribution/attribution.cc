#include "diagnose/attribution/attribution.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/hash.h"

namespace plimsoll {
namespace {

/// Sizes that only cuBLAS and cuBLASLt ask for: 32 MiB on Hopper, 1 MiB for Lt, 8 MiB + 128 KiB and
/// 4 MiB elsewhere.
constexpr std::array<Bytes, 4> kCublasWorkspaces = {33554432, 1048576, 8519680, 4194304};

/// Frozen and shared parameters have no state of their own; most of the others do.
constexpr double kMostOfTheGradients = 0.8;

bool IsCublasSize(Bytes n) {
  return std::find(kCublasWorkspaces.begin(), kCublasWorkspaces.end(), n) !=
         kCublasWorkspaces.end();
}

class Attributor {
 public:
  explicit Attributor(const Phases& phases) : p_(phases) {
    out_.category.assign(p_.ledger.allocations.size(), Category::kUnattributed);
    out_.reason.assign(p_.ledger.allocations.size(), Reason::kNone);
  }

  Attribution Run() {
    FindKept();
    FindCutOffForwards();
    AttributeEarlier();
    AttributeModel();
    AttributeRebuiltModels();
    AttributeCaches();
    AttributeTheRest();
    AttributeOwnOptimizer();
    AttributeBuckets();
    FollowSites();
    return std::move(out_);
  }

 private:
  bool Done(AllocationIndex a) const { return out_.reason[a] != Reason::kNone; }
  void Set(AllocationIndex a, Category category, Reason reason) {
    out_.category[a] = category;
    out_.reason[a] = reason;
  }
  bool StaysThroughout(const Allocation& a) const {
    if (a.made >= FirstBackward()) return false;
    const Position released = p_.Released(a);
    if (released == kNotYet) return true;
    return a.made != kBefore && !p_.backwards.empty() && released > p_.backwards.back().end;
  }
  Position FirstBackward() const {
    return p_.backwards.empty() ? p_.end : p_.backwards.front().start;
  }

  void FindKept();
  bool IsKept(AllocationIndex a) const { return kept_[a]; }
  void AttributeEarlier();
  void AttributeEarlierStaying();
  void AttributeModel();
  void AttributeModelBySigns();
  void AttributeRebuiltModels();
  void AttributeCaches();
  void AttributeOwnOptimizer();
  /// Made inside a module that is called, not while one is built or moved: no parameter.
  bool MadeInCall(const Allocation& x) const {
    const std::uint16_t signs = p_.Signs(x);
    return (signs & kSignModuleCall) != 0 && (signs & (kSignApply | kSignConstructor)) == 0;
  }
  void AttributeTheRest();
  void AttributeInBackward(AllocationIndex a, const Backward& b);
  void AttributeOutside(AllocationIndex a, std::size_t gap);
  void FindCutOffForwards();
  bool IsCutOff(const Allocation& x) const;
  void AttributeOutliving(AllocationIndex a, std::size_t gap);
  void AttributeAfterLast(AllocationIndex a);
  void AttributeBuckets();
  void FollowSites();

  const Phases& p_;
  Attribution out_;
  std::vector<bool> kept_;
  std::map<Position, Position> cut_off_;
};

void Attributor::FindKept() {
  kept_.assign(p_.ledger.allocations.size(), false);
  out_.kept = FindKeptSites(p_);
  for (const KeptSite& site : out_.kept) {
    for (AllocationIndex a : site.allocations) kept_[a] = true;
  }
}

/// What was there before the record began.
void Attributor::AttributeEarlier() {
  AttributeEarlierStaying();
  HashMap<Bytes, bool> gradient_size;
  for (AllocationIndex g : p_.gradient_set) gradient_size[p_.at(g).requested] = true;
  for (AllocationIndex a = 0; a < p_.ledger.allocations.size(); ++a) {
    const Allocation& x = p_.at(a);
    if (x.made != kBefore) break;
    const Position released = p_.Released(x);
    if (Done(a) || released == kNotYet || p_.backwards.empty()) continue;
    const std::size_t gap = p_.GapOf(released);
    if (gap < p_.backwards.size() && released >= p_.backwards[gap].start) {
      Set(a, Category::kActivations, Reason::kReleasedInBackward);
    } else if (gradient_size.contains(x.requested)) {
      Set(a, Category::kGradients, Reason::kGradient);
    } else {
      Set(a, Category::kInputs, Reason::kBatch);
    }
  }
}

/// Never released: parameters, their buffers, and k copies of the optimizer's state. The frames of
/// the final state decide where there are any; else a size that occurs k + 1 times as often as
/// among the gradients is one parameter and k states.
void Attributor::AttributeEarlierStaying() {
  HashMap<Bytes, std::int64_t> gradients;
  for (AllocationIndex g : p_.gradient_set) ++gradients[p_.at(g).requested];
  std::map<Bytes, std::vector<AllocationIndex>> by_size;
  for (AllocationIndex a = 0; a < p_.ledger.allocations.size(); ++a) {
    const Allocation& x = p_.at(a);
    if (x.made != kBefore) break;
    if (p_.Released(x) != kNotYet) continue;
    const std::uint16_t signs = p_.Signs(x);
    if ((signs & (kSignApply | kSignConstructor)) != 0) {
      Set(a, Category::kParameters, Reason::kModelFrames);
    } else if ((signs & (kSignOptimizer | kSignScalerStep)) != 0) {
      Set(a, Category::kOptimizerState, Reason::kOptimizerPhase);
    } else if ((signs & kSignModuleCall) != 0) {
      Set(a, Category::kTemporaries, Reason::kWorkspace);
    }
    by_size[x.requested].push_back(a);
  }
  for (auto& [size, list] : by_size) {
    std::int64_t parameters = 0;
    if (auto found = gradients.find(size); found != gradients.end()) parameters = found->second;
    for (AllocationIndex a : list) {
      if (out_.category[a] == Category::kParameters) --parameters;
    }
    const bool matched = gradients.contains(size);
    for (AllocationIndex a : list) {
      if (Done(a)) continue;
      // Without a backward there is nothing to compare sizes with.
      if (p_.gradient_set.empty()) break;
      if (!matched) {
        if (IsCublasSize(size)) {
          Set(a, Category::kTemporaries, Reason::kWorkspace);
        } else {
          Set(a, Category::kParameters, Reason::kModelEarlier);
        }
      } else if (parameters > 0) {
        --parameters;
        Set(a, Category::kParameters, Reason::kModelEarlier);
      } else {
        Set(a, Category::kOptimizerState, Reason::kOptimizerEarlier);
      }
    }
  }
}

/// Parameters and buffers: made before the first forward, never released, up to the last one that a
/// gradient matches in size.
void Attributor::AttributeModel() {
  if (p_.gradient_set.empty()) return AttributeModelBySigns();
  HashMap<Bytes, std::int64_t> gradients;
  bool flat = false;
  for (AllocationIndex g : p_.gradient_set) {
    ++gradients[p_.at(g).requested];
    flat |= (p_.Signs(p_.at(g)) & kSignFsdp) != 0;
  }
  Position last_matched = kBefore;
  Position last_sharded = kBefore;
  auto need = gradients;
  const std::span<const Allocation> before_forward = p_.Between(kBefore, p_.first_forward);
  for (const Allocation& x : before_forward) {
    if (!StaysThroughout(x) || (!flat && MadeInCall(x))) continue;
    if ((p_.Signs(x) & kSignFsdp) != 0) last_sharded = x.made;
    const auto found = need.find(x.requested);
    if (found == need.end() || found->second == 0) continue;
    --found->second;
    last_matched = x.made;
  }
  if (flat && last_sharded != kBefore) last_matched = last_sharded;
  for (const Allocation& x : before_forward) {
    const AllocationIndex a = p_.IndexOf(x);
    if (!StaysThroughout(x) || Done(a) || (!flat && MadeInCall(x))) continue;
    const std::uint16_t signs = p_.Signs(x);
    if (x.made <= last_matched) {
      const bool matched = gradients.contains(x.requested) || flat;
      Set(a, Category::kParameters, matched ? Reason::kModelMatched : Reason::kModelBuffer);
    } else if ((signs & (kSignApply | kSignConstructor)) != 0) {
      Set(a, Category::kParameters, Reason::kModelFrames);
    } else if ((signs & kSignOptimizer) != 0) {
      Set(a, Category::kOptimizerState, Reason::kOptimizerPhase);
    } else if ((signs & kSignDdp) != 0) {
      Set(a, Category::kGradients, Reason::kGradientBucket);
    } else if (gradients.contains(x.requested)) {
      Set(a, Category::kParameters, Reason::kModelCopy);
    } else if ((signs & kSignModuleCall) == 0 && !IsCublasSize(x.requested)) {
      Set(a, Category::kInputs, Reason::kConstant);
    }
  }
}

/// No backward ever ended: frames alone tell the model. Without those, what is made before the
/// first module is called and stays is taken for the model.
void Attributor::AttributeModelBySigns() {
  Position first_call = p_.end;
  Position last_sign = kBefore;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const std::uint16_t signs = p_.Signs(x);
    if ((signs & kSignModuleCall) != 0) {
      first_call = x.made;
      break;
    }
    if ((signs & (kSignApply | kSignConstructor)) != 0) last_sign = x.made;
  }
  if (first_call == p_.end && last_sign == kBefore) return;
  for (const Allocation& x : p_.Between(kBefore, first_call)) {
    if (p_.Released(x) != kNotYet) continue;
    const std::uint16_t signs = p_.Signs(x);
    const bool model = (signs & (kSignApply | kSignConstructor)) != 0;
    if (model || last_sign == kBefore) {
      Set(p_.IndexOf(x), Category::kParameters,
          model ? Reason::kModelFrames : Reason::kModelEarlier);
    } else if (x.made > last_sign) {
      Set(p_.IndexOf(x), Category::kInputs, Reason::kBatch);
    }
  }
}

/// A program may build its model several times, or let go of it before the record ends: what is
/// made while a module is built or moved and is there when one is called next is the model's.
void Attributor::AttributeRebuiltModels() {
  std::vector<Position> calls;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    if (MadeInCall(x)) calls.push_back(x.made);
  }
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    const std::uint16_t signs = p_.Signs(x);
    if (Done(a) || (signs & (kSignApply | kSignConstructor)) == 0 || MadeInCall(x)) continue;
    const auto next = std::upper_bound(calls.begin(), calls.end(), x.made);
    if (next != calls.end() && p_.Released(x) > *next) {
      Set(a, Category::kParameters, Reason::kModelFrames);
    }
  }
}

/// Where nothing is trained, what the cache's own file makes is the cache.
void Attributor::AttributeCaches() {
  if (!p_.backwards.empty()) return;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (!Done(a) && (p_.Signs(x) & kSignCache) != 0) Set(a, Category::kKept, Reason::kCache);
  }
}

/// The state of an optimizer that is not PyTorch's: made outside of every module, alive through a
/// whole backward, and together one or more for each gradient, by size.
void Attributor::AttributeOwnOptimizer() {
  std::unordered_map<Bytes, std::int64_t> gradients;
  Bytes all_gradients = 0;
  for (AllocationIndex g : p_.gradient_set) {
    ++gradients[p_.at(g).requested];
    all_gradients += p_.at(g).requested;
  }
  const auto is_open = [&](AllocationIndex a) {
    const Reason r = out_.reason[a];
    return r == Reason::kNone || r == Reason::kBatch || r == Reason::kConstant ||
           r == Reason::kWorkspace || r == Reason::kForwardResult;
  };
  std::map<std::size_t, std::vector<AllocationIndex>> rounds;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (!is_open(a) || MadeInCall(x) || p_.ThreadOf(x) != Thread::kMain) continue;
    if (gradients.contains(x.requested) && p_.Outlived(x) >= 1) {
      rounds[p_.GapOf(x.made)].push_back(a);
    }
  }
  for (const auto& [gap, round] : rounds) {
    std::unordered_map<Bytes, std::int64_t> made;
    for (AllocationIndex a : round) ++made[p_.at(a).requested];
    Bytes covered = 0;
    for (const auto& [size, count] : gradients) {
      const auto found = made.find(size);
      if (found != made.end()) covered += size * std::min(count, found->second);
    }
    if (all_gradients == 0 || double(covered) < kMostOfTheGradients * double(all_gradients)) {
      continue;
    }
    for (AllocationIndex a : round) {
      Set(a, Category::kOptimizerState, Reason::kOptimizerBySize);
    }
  }
}

void Attributor::AttributeTheRest() {
  for (const Allocation& x : p_.Between(kBefore, kNotYet)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (Done(a)) continue;
    if (p_.is_gradient[a]) {
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

/// Made after the last backward.
void Attributor::AttributeAfterLast(AllocationIndex a) {
  const Allocation& x = p_.at(a);
  const bool in_call = (p_.Signs(x) & kSignModuleCall) != 0;
  if (p_.fatal) {
    if (in_call) return Set(a, Category::kActivations, Reason::kForwardUnfinished);
    if (p_.framed) return Set(a, Category::kInputs, Reason::kBatch);
  }
}

/// DDP's buckets by behaviour: few blocks, made together at one place, as large as the gradients.
void Attributor::AttributeBuckets() {
  Bytes gradient_bytes = 0;
  for (AllocationIndex g : p_.gradient_set) gradient_bytes += p_.at(g).requested;
  // Gradients that are views of the buckets have no memory of their own.
  const bool views = gradient_bytes == 0;
  for (AllocationIndex a = 0; views && a < p_.ledger.allocations.size(); ++a) {
    const bool model = out_.category[a] == Category::kParameters;
    if (model && p_.at(a).made != kBefore) gradient_bytes += p_.at(a).requested;
  }
  if (gradient_bytes == 0) return;
  constexpr Bytes kLeastBucket = 256 * kKiB;
  std::map<std::pair<std::uint32_t, std::size_t>, std::vector<AllocationIndex>> groups;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    const Reason reason = out_.reason[a];
    const bool candidate = reason == Reason::kWorkspace || reason == Reason::kConstant ||
                           reason == Reason::kForwardResult || reason == Reason::kNone;
    if (!candidate || x.requested < kLeastBucket || p_.ThreadOf(x) != Thread::kMain) continue;
    if (p_.Outlived(x) < 1) continue;
    groups[{p_.stacks.of(x.stack).site, p_.GapOf(x.made)}].push_back(a);
  }
  for (const auto& [key, group] : groups) {
    Bytes total = 0;
    for (AllocationIndex a : group) total += p_.at(a).requested;
    const double ratio = double(total) / double(gradient_bytes);
    if (!views && group.size() * 2 >= p_.gradient_set.size()) continue;
    if (ratio < (views ? 0.9 : 0.98) || ratio > 1.02) continue;
    for (AllocationIndex a : group) Set(a, Category::kGradients, Reason::kGradientBucket);
  }
}

/// What is still open takes the verdict of its place, if that has one.
void Attributor::FollowSites() {
  if (!p_.framed) return;
  std::unordered_map<std::uint32_t, std::array<int, kCategoryCount>> votes;
  for (const Allocation& x : p_.Between(kBefore, kNotYet)) {
    const AllocationIndex a = p_.IndexOf(x);
    const std::uint32_t site = p_.stacks.of(x.stack).site;
    if (site != 0 && Done(a)) ++votes[site][static_cast<std::size_t>(out_.category[a])];
  }
  for (const Allocation& x : p_.Between(kBefore, kNotYet)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (Done(a)) continue;
    const auto found = votes.find(p_.stacks.of(x.stack).site);
    const std::uint16_t signs = p_.Signs(x);
    if (found != votes.end()) {
      const auto best = std::max_element(found->second.begin(), found->second.end());
      Set(a, static_cast<Category>(best - found->second.begin()), Reason::kSameSite);
    } else if ((signs & kSignModuleCall) != 0) {
      const bool stays = p_.Released(x) == kNotYet;
      Set(a, Category::kTemporaries, stays ? Reason::kWorkspace : Reason::kShortLived);
    } else if ((signs & kSignOptimizer) != 0) {
      Set(a, Category::kOptimizerState, Reason::kOptimizerPhase);
    }
  }
}

}  // namespace

Attribution Attribute(const Phases& phases) { return Attributor(phases).Run(); }

}  // namespace plimsoll
