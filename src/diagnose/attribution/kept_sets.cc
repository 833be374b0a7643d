#include "diagnose/attribution/kept_sets.h"

#include <algorithm>
#include <map>

#include "base/hash.h"

namespace plimsoll {
namespace {

constexpr std::size_t kLeastSets = 3;
/// Shared and frozen parameters have no state; most of the others do.
constexpr double kNearlyWhole = 0.8;

/// What a set must have to be a whole one, and how many of them a job that is well may hold: one
/// for each model that has parameters of these sizes.
struct WholeSet {
  HashMap<Bytes, std::int64_t> sizes;
  double bytes = 0;
  double models = 0;

  /// A gradient or a state has the size of its parameter; the history of L-BFGS, which grows up to
  /// a length, has not.
  bool IsCoveredBy(const Phases& p, const std::vector<AllocationIndex>& set) const {
    HashMap<Bytes, std::int64_t> left = sizes;
    double covered = 0;
    for (AllocationIndex a : set) {
      const auto found = left.find(p.at(a).requested);
      if (found != left.end() && found->second-- > 0) covered += double(p.at(a).requested);
    }
    return covered >= kNearlyWhole * bytes;
  }
};

WholeSet WholeSetOf(const Phases& p) {
  WholeSet whole;
  for (AllocationIndex g : p.gradient_set) {
    ++whole.sizes[p.at(g).requested];
    whole.bytes += double(p.at(g).requested);
  }
  double parameters = 0;
  for (const Allocation& x : p.ledger.allocations) {
    if (x.made >= p.first_forward) break;
    const bool stays = p.Released(x) == kNotYet || p.Released(x) > p.backwards.back().end;
    const bool state = (p.Signs(x) & kSignOptimizer) != 0;
    if (stays && !state && whole.sizes.contains(x.requested)) parameters += double(x.requested);
  }
  whole.models = parameters / std::max(whole.bytes, 1.0);
  return whole;
}

/// By the number of the backward that they come before.
using SetsByPass = std::map<std::size_t, std::vector<AllocationIndex>>;

/// All but the newest, which is in use.
std::vector<KeptSite> OlderSets(const Phases& p, SetsByPass sets, std::size_t whole_backwards) {
  const WholeSet whole = WholeSetOf(p);
  std::erase_if(sets, [&](const auto& set) { return !whole.IsCoveredBy(p, set.second); });
  if (sets.size() < kLeastSets || double(sets.size()) < whole.models + 0.5) return {};
  const std::size_t period =
      (sets.rbegin()->first - sets.begin()->first + sets.size() - 2) / (sets.size() - 1);
  if (sets.rbegin()->first + period < whole_backwards) return {};
  KeptSite kept;
  for (auto set = sets.begin(); set != std::prev(sets.end()); ++set) {
    kept.allocations.insert(kept.allocations.end(), set->second.begin(), set->second.end());
  }
  return {std::move(kept)};
}

}  // namespace

std::size_t WholeBackwards(const Phases& p) {
  const bool cut = !p.backwards.empty() && p.CutShort(p.backwards.back());
  return p.backwards.size() - (cut ? 1 : 0);
}

std::vector<KeptSite> FindKeptSets(const Phases& p) {
  const std::size_t whole = WholeBackwards(p);
  if (whole < kLeastSets || p.gradient_set.empty()) return {};
  const Position last = p.backwards[whole - 1].end;
  SetsByPass gradients;
  for (std::size_t k = 0; k < whole; ++k) {
    for (AllocationIndex g : p.backwards[k].gradients) {
      if (p.Released(p.at(g)) > last) gradients[k].push_back(g);
    }
  }
  SetsByPass states;
  Position first_gone = kNotYet;
  for (const Allocation& x : p.Between(p.first_forward, p.end)) {
    const bool by_optimizer = (p.Signs(x) & kSignOptimizer) != 0 || p.marks.Cover(x.made);
    if (!by_optimizer || p.is_gradient[p.IndexOf(x)] || p.Released(x) <= last) continue;
    // What was made after the last backward stays if it does not go before the older ones.
    if (x.made < last) first_gone = std::min(first_gone, p.Released(x));
    if (x.made > last && p.Released(x) < first_gone) continue;
    states[p.GapOf(x.made)].push_back(p.IndexOf(x));
  }
  std::vector<KeptSite> kept = OlderSets(p, std::move(gradients), whole);
  for (KeptSite& site : kept) site.kind = KeptKind::kGradients;
  for (KeptSite& site : OlderSets(p, std::move(states), whole)) {
    site.kind = KeptKind::kOptimizerState;
    kept.push_back(std::move(site));
  }
  return kept;
}

}  // namespace plimsoll
