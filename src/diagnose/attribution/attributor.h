// The rules that say what each allocation is for, in the order in which they are asked. What one
// has decided the next ones leave alone.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "diagnose/attribution/attribution.h"

namespace plimsoll {

/// Whether a size is one that only cuBLAS and cuBLASLt ask for.
bool IsCublasSize(Bytes n);

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
  static std::size_t SiteOf(const Allocation& x) {
    return x.stack.valid() ? x.stack.index() + 1 : 0;
  }
  void AttributeBuckets();
  void FollowSites();

  const Phases& p_;
  Attribution out_;
  std::vector<bool> kept_;
  std::map<Position, Position> cut_off_;
  /// Where the batches that the steps took were made.
  std::set<std::size_t> input_sites_;
  /// A forward has begun after the last backward.
  bool forward_after_last_ = false;
  /// The places that make something large after the last backward.
  std::optional<std::set<std::size_t>> large_after_last_ = {};
};

}  // namespace plimsoll
