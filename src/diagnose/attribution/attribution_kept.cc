// Which places of the program keep something each step.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "diagnose/attribution/attribution.h"

namespace plimsoll {
namespace {

struct Made {
  std::size_t gap;
  AllocationIndex a;
};
/// A stack names a place; without one (the backward thread) size and stream have to.
using Place = std::tuple<std::uint32_t, Bytes, std::uint16_t>;

std::map<Place, std::vector<Made>> PlacesThatLeave(const Phases& p) {
  std::map<Place, std::vector<Made>> places;
  // What is released after the last allocation goes because the program ends.
  const Position last_made =
      p.ledger.allocations.empty() ? kBefore : p.ledger.allocations.back().made;
  for (const Allocation& x : p.Between(p.first_forward - 1, p.end)) {
    const AllocationIndex a = p.IndexOf(x);
    if (p.is_gradient[a] || (p.Signs(x) & (kSignOptimizer | kSignScalerStep)) != 0) continue;
    if (p.InMarkedStep(x.made)) continue;
    const std::size_t gap = p.GapOf(x.made);
    const bool late = gap + 1 >= p.backwards.size();
    if (p.Outlived(x) < 2 && !(late && p.Released(x) > last_made)) continue;
    const std::uint32_t site = p.stacks.of(x.stack).site;
    const bool by_size = site == 0 || p.ThreadOf(x) == Thread::kBackward;
    const std::uint16_t stream = by_size ? x.stream : std::uint16_t{0};
    places[{site, by_size ? x.requested : 0, stream}].push_back({gap, a});
  }
  return places;
}

/// Rounds in which a place left something behind that outlived two backwards; in how many of them
/// some of it was alive when the next was made.
struct Rounds {
  std::size_t all = 0;
  std::size_t piled = 0;
};

Rounds CountRounds(const Phases& p, const std::vector<Made>& made) {
  Rounds rounds;
  for (std::size_t i = 0; i < made.size();) {
    std::size_t next = i;
    while (next < made.size() && made[next].gap == made[i].gap) ++next;
    ++rounds.all;
    if (next == made.size()) break;
    const Position when = p.at(made[next].a).made;
    const auto alive = [&](const Made& m) { return p.Released(p.at(m.a)) > when; };
    const auto first = made.begin() + static_cast<std::ptrdiff_t>(i);
    const auto last = made.begin() + static_cast<std::ptrdiff_t>(next);
    if (std::any_of(first, last, alive)) ++rounds.piled;
    i = next;
  }
  return rounds;
}

bool PilesUp(const Phases& p, const Place& place, const std::vector<Made>& made) {
  // What is alive because the program ran out is no proof of anything.
  if (p.fatal) {
    std::vector<Made> proven = made;
    std::erase_if(proven, [&](const Made& m) { return p.Outlived(p.at(m.a)) < 2; });
    if (CountRounds(p, proven).all < 2) return false;
  }
  const Rounds rounds = CountRounds(p, made);
  const bool named = std::get<Bytes>(place) == 0;
  if (rounds.all < (named ? 2 : 3) || rounds.piled + 1 < rounds.all) return false;
  const std::size_t first_gap = made.front().gap;
  const std::size_t could = p.backwards.size() - std::min(first_gap, p.backwards.size());
  // A prefetched batch or a reused variable lives a fixed short time; what is kept lives on.
  const std::size_t lived = p.Outlived(p.at(made.front().a));
  if (lived < std::max<std::size_t>(2, std::min<std::size_t>(3, could))) return false;
  // A buffer of fixed length drops its oldest: what is kept piles up to the end.
  const Position last_round = p.at(made.back().a).made;
  std::set<std::size_t> alive_rounds;
  for (const Made& m : made) {
    if (p.Released(p.at(m.a)) > last_round) alive_rounds.insert(m.gap);
  }
  return alive_rounds.size() * 2 >= rounds.all;
}

/// Of the last rounds, which nothing outlived yet, only what has the size of an older one.
void DropUnproven(const Phases& p, std::vector<Made>& made) {
  std::set<Bytes> kept_sizes;
  for (const Made& m : made) {
    if (p.Outlived(p.at(m.a)) >= 2) kept_sizes.insert(p.at(m.a).requested);
  }
  std::erase_if(made, [&](const Made& m) {
    return p.Outlived(p.at(m.a)) < 2 && !kept_sizes.contains(p.at(m.a).requested);
  });
}

}  // namespace

std::vector<KeptSite> FindKeptSites(const Phases& p) {
  std::vector<KeptSite> sites;
  for (const auto& [place, made] : PlacesThatLeave(p)) {
    std::vector<Made> kept = made;
    if (!PilesUp(p, place, kept)) continue;
    DropUnproven(p, kept);
    KeptSite site{.site = std::get<0>(place), .allocations = {}};
    for (const Made& m : kept) site.allocations.push_back(m.a);
    sites.push_back(std::move(site));
  }
  return sites;
}

}  // namespace plimsoll
