#include "recompute/checkpoint_sets.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace plimsoll {
namespace {

/// In microseconds: no block is quite free, so that the fewer are chosen.
constexpr double kLeastTime = 1;
/// How many intervals the exact search looks at, over all sets that it goes through.
constexpr std::size_t kMostWork = 500'000;
/// How many intervals exchanges look at.
constexpr std::size_t kMostExchangeWork = 100'000'000;

using Over = std::vector<Bytes>;

Bytes Excess(const Over& over) {
  return std::accumulate(over.begin(), over.end(), Bytes{0},
                         [](Bytes sum, Bytes one) { return sum + std::max(one, Bytes{0}); });
}

bool Fits(const Over& over) {
  return std::all_of(over.begin(), over.end(), [](Bytes one) { return one <= 0; });
}

/// One set in the making.
class State {
 public:
  explicit State(const CoverProblem& problem)
      : problem_(&problem), over_(problem.over), chosen_(problem.size(), false) {}

  void Flip(std::size_t block) {
    const Bytes sign = chosen_[block] ? -1 : 1;
    for (std::size_t t = 0; t < over_.size(); ++t) over_[t] += sign * problem_->change[block][t];
    time_ += double(sign) * problem_->time[block];
    chosen_[block] = !chosen_[block];
  }
  bool Has(std::size_t block) const { return chosen_[block]; }
  bool CanAdd(std::size_t block) const {
    const auto& conflicts = problem_->conflicts[block];
    return !chosen_[block] && std::none_of(conflicts.begin(), conflicts.end(),
                                           [&](std::size_t other) { return chosen_[other]; });
  }
  std::vector<std::size_t> InTheWayOf(std::size_t block) const {
    std::vector<std::size_t> chosen;
    for (const std::size_t other : problem_->conflicts[block]) {
      if (chosen_[other]) chosen.push_back(other);
    }
    return chosen;
  }
  /// Those in the way of a block are taken out.
  void Exchange(std::size_t block) {
    for (const std::size_t other : InTheWayOf(block)) Flip(other);
    Flip(block);
  }
  /// The excess and the time that would be left after that.
  std::pair<Bytes, double> WithExchange(std::size_t block) const {
    double time = time_ + problem_->time[block];
    Over over = over_;
    const auto add = [&](std::size_t which, Bytes sign) {
      const Over& change = problem_->change[which];
      for (std::size_t t = 0; t < over.size(); ++t) over[t] += sign * change[t];
    };
    add(block, 1);
    for (const std::size_t other : InTheWayOf(block)) {
      add(other, -1);
      time -= problem_->time[other];
    }
    const Bytes excess = Excess(over);
    return {excess, time};
  }
  const Over& over() const { return over_; }
  double time() const { return time_; }
  /// As the model numbers them.
  BlockSet Chosen() const {
    BlockSet set;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      if (chosen_[i]) set.push_back(problem_->blocks[i]);
    }
    return set;
  }

 private:
  const CoverProblem* problem_;
  Over over_;
  std::vector<bool> chosen_;
  double time_ = 0;
};

/// Chooses the block that takes away most of the excess for its time, until there is none. What a
/// block takes away becomes less as others are chosen, so that only those are looked at again that
/// would still be the best by what they took away before. False where it does not get there.
bool Cover(const CoverProblem& problem, const std::vector<bool>& banned, State& state) {
  Bytes excess = Excess(state.over());
  const auto ratio = [&](std::size_t block) {
    const auto [left, time] = state.WithExchange(block);
    return double(excess - left) / std::max(time - state.time(), kLeastTime);
  };
  // Of two that are as good the first.
  std::set<std::pair<double, std::size_t>> by_ratio;
  for (std::size_t block = 0; block < problem.size(); ++block) {
    if (!banned[block]) by_ratio.emplace(-ratio(block), block);
  }
  while (excess > 0) {
    if (by_ratio.empty()) return false;
    const auto [before, block] = *by_ratio.begin();
    by_ratio.erase(by_ratio.begin());
    if (state.Has(block)) continue;
    const double now = ratio(block);
    if (!by_ratio.empty() && -now > by_ratio.begin()->first) {
      by_ratio.emplace(-now, block);
      continue;
    }
    if (now <= 0) return false;
    std::vector<std::size_t> in_the_way = state.InTheWayOf(block);
    state.Exchange(block);
    excess = Excess(state.over());
    for (const std::size_t out : in_the_way) by_ratio.emplace(-ratio(out), out);
  }
  return true;
}

/// Where it is furthest above the target: the chosen block in the place of which another would take
/// away most there. Nothing where there is none.
std::optional<std::size_t> InTheWay(const CoverProblem& problem, const std::vector<bool>& banned,
                                    const State& state) {
  const Over& over = state.over();
  const auto worst = std::size_t(std::max_element(over.begin(), over.end()) - over.begin());
  std::optional<std::size_t> found;
  Bytes most = 0;
  for (std::size_t block = 0; block < problem.size(); ++block) {
    if (!state.Has(block)) continue;
    for (const std::size_t other : problem.conflicts[block]) {
      if (banned[other]) continue;
      const Bytes less = problem.change[block][worst] - problem.change[other][worst];
      if (less <= most) continue;
      most = less;
      found = block;
    }
  }
  return found;
}

/// A block that takes away much for its time can be in the way of several that take away more: then
/// once more without it.
std::optional<State> Greedy(const CoverProblem& problem) {
  constexpr int kMostTimes = 32;
  std::vector<bool> banned(problem.size(), false);
  for (int i = 0; i < kMostTimes; ++i) {
    State state(problem);
    if (Cover(problem, banned, state)) return state;
    const auto block = InTheWay(problem, banned, state);
    if (!block) break;
    banned[*block] = true;
  }
  return std::nullopt;
}

/// Takes out what is not needed, and exchanges blocks for cheaper ones, as long as that is
/// possible.
void Improve(const CoverProblem& problem, State& state) {
  std::vector<std::size_t> dearest(problem.size());
  std::iota(dearest.begin(), dearest.end(), 0);
  std::stable_sort(dearest.begin(), dearest.end(),
                   [&](std::size_t a, std::size_t b) { return problem.time[a] > problem.time[b]; });
  std::size_t work = 0;
  for (bool better = true; better && work < kMostExchangeWork;) {
    better = false;
    for (const std::size_t out : dearest) {
      if (!state.Has(out) || work >= kMostExchangeWork) continue;
      state.Flip(out);
      work += state.over().size();
      if (Fits(state.over())) {
        better = true;
        continue;
      }
      const auto in = std::find_if(dearest.rbegin(), dearest.rend(), [&](std::size_t block) {
        if (problem.time[block] >= problem.time[out] || !state.CanAdd(block)) return false;
        work += 2 * state.over().size();
        state.Flip(block);
        const bool fits = Fits(state.over());
        if (!fits) state.Flip(block);
        return fits;
      });
      if (in == dearest.rend()) {
        state.Flip(out);
      } else {
        better = true;
      }
    }
  }
}

/// Goes through all sets that could be cheaper than the best so far, up to a number of steps.
class ExactSearch {
 public:
  ExactSearch(const CoverProblem& problem, State& best)
      : problem_(problem), best_(best), state_(problem), order_(problem.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    const auto ratio = [&](std::size_t block) { return WorthOf(block) / problem.time[block]; };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return ratio(a) > ratio(b); });
    FindBounds();
  }

  void Run() { From(0); }

 private:
  double WorthOf(std::size_t block) const {
    double worth = 0;
    for (std::size_t t = 0; t < problem_.over.size(); ++t) {
      if (problem_.over[t] > 0) worth -= double(problem_.change[block][t]);
    }
    return worth;
  }

  /// What the blocks from each one on can still take away from each interval, and at which rate the
  /// best of them does.
  void FindBounds() {
    const std::size_t intervals = problem_.over.size();
    takes_.assign(problem_.size() + 1, Over(intervals, 0));
    rate_.assign(problem_.size() + 1, std::vector<double>(intervals, 0));
    for (std::size_t i = problem_.size(); i-- > 0;) {
      const std::size_t block = order_[i];
      for (std::size_t t = 0; t < intervals; ++t) {
        const Bytes less = std::max(-problem_.change[block][t], Bytes{0});
        takes_[i][t] = takes_[i + 1][t] + less;
        rate_[i][t] = std::max(rate_[i + 1][t], double(less) / problem_.time[block]);
      }
    }
  }

  /// The least time that the blocks from this one on need to come below the target.
  double LeastTime(std::size_t from) const {
    double least = 0;
    for (std::size_t t = 0; t < state_.over().size(); ++t) {
      const Bytes over = state_.over()[t];
      if (over <= 0) continue;
      if (over > takes_[from][t]) return std::numeric_limits<double>::infinity();
      least = std::max(least, double(over) / rate_[from][t]);
    }
    return least;
  }

  void From(std::size_t i) {
    work_ += state_.over().size();
    if (work_ > kMostWork) return;
    if (Fits(state_.over()) && state_.time() < best_.time()) best_ = state_;
    if (i == problem_.size() || state_.time() + LeastTime(i) >= best_.time()) return;
    if (state_.CanAdd(order_[i])) {
      state_.Flip(order_[i]);
      From(i + 1);
      state_.Flip(order_[i]);
    }
    From(i + 1);
  }

  const CoverProblem& problem_;
  State& best_;
  State state_;
  std::vector<std::size_t> order_;
  std::vector<Over> takes_;
  std::vector<std::vector<double>> rate_;
  std::size_t work_ = 0;
};

}  // namespace

CheckpointSets::CheckpointSets(const CheckpointModel& model) {
  std::set<std::size_t> bounds = {0};
  for (const CheckpointBlock& block : model.blocks) {
    for (const MemoryChange& change : block.changes) {
      bounds.insert(change.begin);
      bounds.insert(change.end);
    }
  }
  bounds.insert(model.plain.size());
  const std::vector<std::size_t> at(bounds.begin(), bounds.end());
  for (std::size_t i = 0; i + 1 < at.size(); ++i) {
    plain_.push_back(*std::max_element(model.plain.begin() + std::ptrdiff_t(at[i]),
                                       model.plain.begin() + std::ptrdiff_t(at[i + 1])));
  }
  const auto index = [&](std::size_t moment) {
    return std::size_t(std::lower_bound(at.begin(), at.end(), moment) - at.begin());
  };
  for (const CheckpointBlock& block : model.blocks) {
    std::vector<Bytes>& changes = change_.emplace_back(plain_.size(), 0);
    for (const MemoryChange& change : block.changes) {
      for (std::size_t t = index(change.begin); t < index(change.end); ++t) {
        changes[t] += change.bytes;
      }
    }
    time_.push_back(std::max(block.us, kLeastTime));
    conflicts_.push_back(block.conflicts);
    modules_.push_back(block.module);
  }
  smallest_ = FindSmallest();
}

std::vector<std::string> CheckpointSets::ModulesOf(const BlockSet& set) const {
  std::vector<std::string> modules;
  for (const std::size_t block : set) modules.push_back(modules_[block]);
  return modules;
}

Bytes CheckpointSets::PeakOf(const BlockSet& set) const {
  std::vector<Bytes> alive = plain_;
  for (const std::size_t block : set) {
    for (std::size_t t = 0; t < alive.size(); ++t) alive[t] += change_[block][t];
  }
  return alive.empty() ? 0 : *std::max_element(alive.begin(), alive.end());
}

double CheckpointSets::TimeOf(const BlockSet& set) const {
  double time = 0;
  for (const std::size_t block : set) time += time_[block];
  return time;
}

CoverProblem CheckpointSets::ProblemFor(Bytes target) const {
  std::vector<std::size_t> intervals;
  for (std::size_t t = 0; t < plain_.size(); ++t) {
    Bytes most = plain_[t];
    for (std::size_t block = 0; block < time_.size(); ++block) {
      most += std::max(change_[block][t], Bytes{0});
    }
    if (most > target) intervals.push_back(t);
  }
  CoverProblem problem;
  std::vector<std::size_t> number(time_.size(), time_.size());
  for (const std::size_t t : intervals) problem.over.push_back(plain_[t] - target);
  for (std::size_t block = 0; block < time_.size(); ++block) {
    const bool helps = std::any_of(intervals.begin(), intervals.end(), [&](std::size_t t) {
      return plain_[t] > target && change_[block][t] < 0;
    });
    if (!helps) continue;
    number[block] = problem.size();
    problem.blocks.push_back(block);
    problem.time.push_back(time_[block]);
    std::vector<Bytes>& changes = problem.change.emplace_back();
    for (const std::size_t t : intervals) changes.push_back(change_[block][t]);
  }
  for (const std::size_t block : problem.blocks) {
    std::vector<std::size_t>& conflicts = problem.conflicts.emplace_back();
    for (const std::size_t other : conflicts_[block]) {
      if (number[other] < time_.size()) conflicts.push_back(number[other]);
    }
  }
  return problem;
}

std::optional<BlockSet> CheckpointSets::Cheapest(Bytes target) const {
  const CoverProblem problem = ProblemFor(target);
  std::optional<State> state = Greedy(problem);
  if (!state) return std::nullopt;
  Improve(problem, *state);
  ExactSearch(problem, *state).Run();
  return state->Chosen();
}

BlockSet CheckpointSets::FindSmallest() const {
  constexpr int kRounds = 12;
  BlockSet smallest;
  Bytes possible = PeakOf({});
  Bytes impossible = 0;
  for (int i = 0; i < kRounds && impossible + 1 < possible; ++i) {
    const Bytes target = impossible + (possible - impossible) / 2;
    const CoverProblem problem = ProblemFor(target);
    const std::optional<State> state = Greedy(problem);
    if (!state) {
      impossible = target;
      continue;
    }
    smallest = state->Chosen();
    possible = std::min(target, PeakOf(smallest));
  }
  for (std::size_t i = smallest.size(); i-- > 0;) {
    BlockSet without = smallest;
    without.erase(without.begin() + std::ptrdiff_t(i));
    if (PeakOf(without) <= PeakOf(smallest)) smallest = std::move(without);
  }
  return smallest;
}

std::vector<BlockSet> CheckpointSets::CheaperNeighbours(const BlockSet& set, double us) const {
  std::vector<std::pair<Bytes, BlockSet>> found;
  for (const std::size_t out : set) {
    BlockSet without = set;
    std::erase(without, out);
    if (time_[out] >= us) found.emplace_back(PeakOf(without), without);
    for (std::size_t in = 0; in < time_.size(); ++in) {
      const bool in_the_way = std::any_of(without.begin(), without.end(), [&](std::size_t block) {
        const auto& conflicts = conflicts_[block];
        return block == in || std::find(conflicts.begin(), conflicts.end(), in) != conflicts.end();
      });
      if (time_[out] - time_[in] < us || in_the_way) continue;
      BlockSet with = without;
      with.insert(std::lower_bound(with.begin(), with.end(), in), in);
      found.emplace_back(PeakOf(with), std::move(with));
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<BlockSet> sets;
  for (auto& [peak, neighbour] : found) sets.push_back(std::move(neighbour));
  return sets;
}

}  // namespace plimsoll
