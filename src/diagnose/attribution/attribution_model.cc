// What is there before the first step: parameters and their buffers, and, where the record begins
// later, whatever it found.
#include <algorithm>
#include <map>

#include "base/hash.h"
#include "diagnose/attribution/attributor.h"

namespace plimsoll {

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
    if (IsKept(a)) {
      Set(a, Category::kKept, Reason::kGrowing);
    } else if ((signs & (kSignApply | kSignConstructor)) != 0) {
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

}  // namespace plimsoll
