// Which places of the program keep more with every step.
//
// What is alive when a backward ends is what the program holds from step to step: variables that
// the next step replaces, batches that were loaded ahead, and what is kept. A place keeps more with
// every step if it holds blocks of several rounds, more of them after each round than after the
// last, and went on to the end of the record. So a queue of fixed length, a cache that was filled
// once, or the previous step's result beside this one's are none: their number stands still.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "diagnose/attribution/attribution.h"
#include "diagnose/attribution/kept_sets.h"

namespace plimsoll {
namespace {

/// Rounds that a place must have left something in; as many steps they must be of, unless the
/// passes are so many that they can hardly be the micro-batches of one step.
constexpr std::size_t kLeastRounds = 3;
constexpr std::size_t kSurelyManySteps = 16;

/// A stack names a place; without one (the backward thread) size and stream have to.
using Place = std::tuple<std::uint32_t, Bytes, std::uint16_t>;

Place PlaceOfBlock(const Phases& p, const Allocation& x) {
  const std::uint32_t site = p.stacks.of(x.stack).site;
  const bool named = site != 0 && p.ThreadOf(x) != Thread::kBackward;
  return {site, named ? 0 : x.requested, named ? std::uint16_t{0} : x.stream};
}

/// Gradients and an optimizer's state have rules of their own (kept_sets.h).
bool IsTensorOfTheProgram(const Phases& p, const Allocation& x) {
  return !p.is_gradient[p.IndexOf(x)] && (p.Signs(x) & (kSignOptimizer | kSignScalerStep)) == 0 &&
         !p.marks.Cover(x.made);
}

struct PlaceHistory {
  /// Made after the first forward began, and alive when the last whole backward ended; or made
  /// after that. In the order in which they were made.
  std::vector<AllocationIndex> stay;
  /// The blocks that were alive when each whole backward ended.
  std::vector<std::int64_t> alive;
};

/// The passes in which a place left what stays, by the number of the backward that they come
/// before: a round each.
struct RoundsOfPlace {
  std::vector<std::size_t> passes;
  /// The longest time from one round to the next.
  std::size_t period = 1;
};

class KeptFinder {
 public:
  explicit KeptFinder(const Phases& p) : p_(p), whole_(WholeBackwards(p)) {}

  std::vector<KeptSite> Find() {
    if (whole_ < kLeastRounds) return {};
    CollectStaying();
    CountAlive();
    for (const auto& [place, history] : places_) {
      if (const auto rounds = PilesUp(place, history)) Keep(place, history, *rounds);
    }
    if (p_.fatal) AddUnfinishedRounds();
    return std::move(sites_);
  }

 private:
  std::size_t PassOf(const Allocation& x) const { return std::min(p_.GapOf(x.made), whole_); }
  /// The number of the first whole backward at whose end it was gone.
  std::size_t GoneAt(const Allocation& x) const {
    return std::min(p_.GapOf(p_.Released(x)), whole_);
  }
  bool Proven(std::size_t pass) const { return pass + 2 <= whole_; }
  std::int32_t StepOfPass(std::size_t pass) const {
    return pass < whole_ ? p_.backwards[pass].step : p_.backwards[whole_ - 1].step + 1;
  }

  void CollectStaying();
  void AddFirstLoad();
  void CountAlive();
  std::optional<RoundsOfPlace> RoundsOf(const PlaceHistory& history) const;
  bool SpansSteps(const RoundsOfPlace& rounds) const;
  bool Grows(const PlaceHistory& history, const RoundsOfPlace& rounds) const;
  std::optional<RoundsOfPlace> PilesUp(const Place& place, const PlaceHistory& history) const;
  void Keep(const Place& place, const PlaceHistory& history, const RoundsOfPlace& rounds);
  void AddUnfinishedRounds();

  const Phases& p_;
  const std::size_t whole_;
  std::map<Place, PlaceHistory> places_;
  std::vector<KeptSite> sites_;
  std::set<Place> found_;
};

/// First what is old enough to prove something; most places have nothing of that kind.
void KeptFinder::CollectStaying() {
  const Position last = p_.backwards[whole_ - 1].end;
  for (const Allocation& x : p_.Between(p_.first_forward - 1, last + 1)) {
    if (p_.Released(x) <= last || !IsTensorOfTheProgram(p_, x)) continue;
    places_[PlaceOfBlock(p_, x)].stay.push_back(p_.IndexOf(x));
  }
  AddFirstLoad();
  std::erase_if(places_, [&](const auto& place) {
    return !Proven(PassOf(p_.at(place.second.stay.front())));
  });
  // Of what was made after the last whole backward, that which does not go before the older ones.
  std::map<Place, Position> gone_first;
  for (const auto& [place, history] : places_) {
    Position first = kNotYet;
    for (AllocationIndex a : history.stay) {
      if (Proven(PassOf(p_.at(a)))) first = std::min(first, p_.Released(p_.at(a)));
    }
    gone_first[place] = first;
  }
  for (const Allocation& x : p_.Between(last, p_.end)) {
    const auto place = places_.find(PlaceOfBlock(p_, x));
    if (place == places_.end() || !IsTensorOfTheProgram(p_, x)) continue;
    if (p_.Released(x) >= gone_first[place->first]) place->second.stay.push_back(p_.IndexOf(x));
  }
}

/// What a loop does before its first forward, such as loading the batch, is of its first round
/// where it left no more than a later round does.
void KeptFinder::AddFirstLoad() {
  std::map<Place, std::vector<AllocationIndex>> first_load;
  for (const Allocation& x : p_.Between(kBefore, p_.first_forward)) {
    if (GoneAt(x) < whole_) continue;
    const Place place = PlaceOfBlock(p_, x);
    if (places_.contains(place)) first_load[place].push_back(p_.IndexOf(x));
  }
  for (auto& [place, early] : first_load) {
    std::vector<AllocationIndex>& stay = places_[place].stay;
    std::map<std::size_t, std::size_t> in_pass;
    std::size_t most = 0;
    for (AllocationIndex a : stay) most = std::max(most, ++in_pass[PassOf(p_.at(a))]);
    if (early.size() <= most) stay.insert(stay.begin(), early.begin(), early.end());
  }
}

void KeptFinder::CountAlive() {
  std::vector<bool> asked;
  for (auto& [place, history] : places_) {
    const std::size_t site = std::get<0>(place);
    if (asked.size() <= site) asked.resize(site + 1);
    asked[site] = true;
    history.alive.assign(whole_ + 1, 0);
  }
  for (const Allocation& x : p_.Between(kBefore - 1, p_.end)) {
    const std::size_t site = p_.stacks.of(x.stack).site;
    if (site >= asked.size() || !asked[site]) continue;
    const std::size_t first = PassOf(x);
    const std::size_t gone = GoneAt(x);
    if (gone <= first) continue;
    const auto place = places_.find(PlaceOfBlock(p_, x));
    if (place == places_.end()) continue;
    ++place->second.alive[first];
    --place->second.alive[gone];
  }
  for (auto& [place, history] : places_) {
    for (std::size_t i = 1; i < history.alive.size(); ++i) history.alive[i] += history.alive[i - 1];
    history.alive.resize(whole_);
  }
}

/// What outlived its own backward only may be a variable that the next step replaces: such rounds
/// count where they come as soon after the last as the proven ones did.
std::optional<RoundsOfPlace> KeptFinder::RoundsOf(const PlaceHistory& history) const {
  RoundsOfPlace rounds;
  for (AllocationIndex a : history.stay) {
    const std::size_t pass = PassOf(p_.at(a));
    if (!rounds.passes.empty() && rounds.passes.back() == pass) continue;
    const std::size_t since = rounds.passes.empty() ? 1 : pass - rounds.passes.back();
    if (Proven(pass)) rounds.period = std::max(rounds.period, since);
    if (since <= rounds.period) rounds.passes.push_back(pass);
  }
  if (rounds.passes.size() < kLeastRounds) return std::nullopt;
  return rounds;
}

bool KeptFinder::SpansSteps(const RoundsOfPlace& rounds) const {
  std::set<std::int32_t> steps;
  for (std::size_t pass : rounds.passes) steps.insert(StepOfPass(pass));
  return steps.size() >= kLeastRounds || rounds.passes.size() >= kSurelyManySteps;
}

/// More blocks after each round than after the last, and more at the end than ever before the first
/// of them.
bool KeptFinder::Grows(const PlaceHistory& history, const RoundsOfPlace& rounds) const {
  const std::vector<std::int64_t>& alive = history.alive;
  const std::size_t first = rounds.passes.front();
  for (std::size_t i = 1; i < rounds.passes.size(); ++i) {
    const std::size_t pass = rounds.passes[i];
    if (pass < whole_ && alive[pass] <= alive[rounds.passes[i - 1]]) return false;
  }
  const auto before = alive.begin() + static_cast<std::ptrdiff_t>(first);
  // Of a record that begins mid-run, one round may not be known by its place.
  const std::int64_t unknown = p_.ledger.before > 0 ? 1 : 0;
  if (first > 0 && alive.back() <= *std::max_element(alive.begin(), before) + unknown) return false;
  // A single proven round: the growth must also begin with it.
  const bool one = !Proven(rounds.passes[1]);
  return !one || first == 0 || alive[first] > alive[first - 1];
}

std::optional<RoundsOfPlace> KeptFinder::PilesUp(const Place& place,
                                                 const PlaceHistory& history) const {
  std::optional<RoundsOfPlace> rounds = RoundsOf(history);
  if (!rounds || !SpansSteps(*rounds) || !Grows(history, *rounds)) return std::nullopt;
  // Blocks of one size that are alive because the program ran out need not be of one line.
  const bool named = std::get<Bytes>(place) == 0;
  if (!named && p_.fatal && !Proven(rounds->passes[2])) return std::nullopt;
  // A cache that is full: the next round would have come within the record.
  if (rounds->passes.back() + rounds->period < whole_) return std::nullopt;
  return rounds;
}

void KeptFinder::Keep(const Place& place, const PlaceHistory& history,
                      const RoundsOfPlace& rounds) {
  std::set<Bytes> sizes;
  for (AllocationIndex a : history.stay) {
    if (Proven(PassOf(p_.at(a)))) sizes.insert(p_.at(a).requested);
  }
  KeptSite site;
  const bool named = std::get<Bytes>(place) == 0;
  // What the record found there, of earlier rounds.
  for (AllocationIndex a = 0; named && a < p_.ledger.allocations.size(); ++a) {
    const Allocation& x = p_.at(a);
    if (x.made != kBefore) break;
    if (GoneAt(x) == whole_ && PlaceOfBlock(p_, x) == place) site.allocations.push_back(a);
  }
  for (AllocationIndex a : history.stay) {
    const std::size_t pass = PassOf(p_.at(a));
    const bool counts = std::ranges::binary_search(rounds.passes, pass);
    // In the last rounds the same line may have made what goes with the step.
    if (counts && (Proven(pass) || sizes.contains(p_.at(a).requested) ||
                   (pass < whole_ && sizes.size() >= kLeastRounds - 1))) {
      site.allocations.push_back(a);
    }
  }
  found_.insert(place);
  sites_.push_back(std::move(site));
}

/// A job may run out while it makes the third round of what it keeps. The places that it did not
/// come to have two rounds; where others that the same line calls pile up, they do too.
void KeptFinder::AddUnfinishedRounds() {
  std::set<std::uint32_t> callers;
  for (const KeptSite& site : sites_) {
    callers.insert(p_.stacks.of(p_.at(site.allocations.back()).stack).caller);
  }
  callers.erase(0);
  for (const auto& [place, history] : places_) {
    const std::uint32_t caller = p_.stacks.of(p_.at(history.stay.front()).stack).caller;
    if (found_.contains(place) || !callers.contains(caller)) continue;
    RoundsOfPlace rounds;
    for (AllocationIndex a : history.stay) rounds.passes.push_back(PassOf(p_.at(a)));
    const auto repeated = std::ranges::unique(rounds.passes);
    rounds.passes.erase(repeated.begin(), repeated.end());
    if (rounds.passes.size() + 1 == kLeastRounds && Grows(history, rounds)) {
      Keep(place, history, rounds);
    }
  }
}

}  // namespace

std::vector<KeptSite> FindKeptSites(const Phases& p) {
  std::vector<KeptSite> sites = KeptFinder(p).Find();
  for (KeptSite& set : FindKeptSets(p)) sites.push_back(std::move(set));
  return sites;
}

}  // namespace plimsoll
