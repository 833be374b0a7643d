#include "recompute/checkpoint_choice.h"

#include <algorithm>
#include <map>
#include <optional>

namespace plimsoll {
namespace {

constexpr int kMostTargets = 10;
constexpr int kMostOthers = 6;
constexpr int kMostHigher = 5;
constexpr int kMostNeighbours = 8;
/// The part of the peak by which higher targets are tried in any case.
constexpr Bytes kLeastHigher = 60;
/// The part of a step's time for which another replay is made.
constexpr double kWorthTrying = 0.002;
/// Targets that differ by less than this part of the room are the same.
constexpr Bytes kFinest = 500;

/// What may be alive in the model so that as much is in use as there is room. The score's step may
/// need more or less than that of the model by itself.
Bytes MostAlive(const CheckpointSets& sets, const CheckpointScore& plain) {
  return sets.PeakOf({}) - plain.in_use + plain.room;
}

class Chooser {
 public:
  Chooser(const CheckpointSets& sets, const CheckpointScore& plain, const ScoreCheckpoints& score,
          const CheckpointEffort& effort)
      : sets_(sets), plain_(plain), score_(score), effort_(effort) {}

  Result<CheckpointChoice> Run() {
    scores_[{}] = plain_;
    if (std::optional<Error> error = SearchTargets()) return *error;
    if (!best_ && !model_fails_ && effort_.most_us == std::numeric_limits<double>::infinity()) {
      if (std::optional<Error> error = TrySmallest()) return *error;
    }
    if (best_) {
      if (std::optional<Error> error = TryHigher()) return *error;
      if (std::optional<Error> error = TryNeighbours()) return *error;
    }
    return Made(best_ ? *best_ : closest_);
  }

 private:
  /// Between the highest target whose set fits (or below which there is none) and the lowest whose
  /// set does not; where the last replay says the limit is, if that lies between them.
  std::optional<Error> SearchTargets() {
    Bytes fits = sets_.PeakOf(sets_.Smallest()) - 1;
    Bytes fails = sets_.PeakOf({});
    if (fits >= MostAlive(sets_, plain_)) return std::nullopt;  // not even what is in use has room
    Bytes target = fails - (plain_.high - plain_.room);
    for (int i = 0; i < kMostTargets && fails - fits > plain_.room / kFinest; ++i) {
      if (target <= fits || target >= fails) target = fits + (fails - fits) / 2;
      const std::optional<BlockSet> set = sets_.Cheapest(target);
      if (!set || TimeWith(*set) >= effort_.most_us) {
        fits = target;
        continue;
      }
      const Result<CheckpointScore> score = Score(*set);
      if (!score) return score.error();
      model_fails_ = !score->fits && SavesTooLittle(*set, *score);
      if (model_fails_) return std::nullopt;
      (score->fits ? fits : fails) = target;
      target = sets_.PeakOf(*set) - (score->high - score->room);
    }
    return std::nullopt;
  }

  /// Less than half of what the model says.
  bool SavesTooLittle(const BlockSet& set, const CheckpointScore& score) const {
    return 2 * (plain_.in_use - score.in_use) < sets_.PeakOf({}) - sets_.PeakOf(set);
  }

  /// The set in which the least is alive, and where that alone would leave room, so that it is the
  /// allocator who needs more, some with more alive: they may suit it better.
  std::optional<Error> TrySmallest() {
    const BlockSet& smallest = sets_.Smallest();
    if (const Result<CheckpointScore> score = Score(smallest); !score) return score.error();
    const Bytes peak = sets_.PeakOf(smallest);
    const Bytes most = MostAlive(sets_, plain_);
    for (int i = 1; i <= kMostOthers && !best_ && peak < most; ++i) {
      const std::optional<BlockSet> set =
          sets_.Cheapest(peak + (most - peak) * i / (kMostOthers + 1));
      if (!set) continue;
      if (const Result<CheckpointScore> score = Score(*set); !score) return score.error();
    }
    return std::nullopt;
  }

  /// The model does not know the allocator's luck: the cheapest sets at higher targets, up to where
  /// a set would fit if the allocator added as little to it as to any that was replayed.
  std::optional<Error> TryHigher() {
    const Bytes peak = sets_.PeakOf(*best_);
    Bytes most = peak + peak / kLeastHigher;
    for (const auto& [set, score] : scores_) {
      most = std::max(most, sets_.PeakOf(set) - (score.high - score.room));
    }
    for (int i = 1; i <= kMostHigher; ++i) {
      const std::optional<BlockSet> set = sets_.Cheapest(peak + (most - peak) * i / kMostHigher);
      if (!set || !IsCheaper(*set)) continue;
      if (const Result<CheckpointScore> score = Score(*set); !score) return score.error();
    }
    return std::nullopt;
  }

  /// For the same reason sets that differ by a block and save some time, those first of which the
  /// model says that they take the least.
  std::optional<Error> TryNeighbours() {
    for (int left = kMostNeighbours; left > 0;) {
      const BlockSet before = *best_;
      const double gain = LeastGain();
      for (const BlockSet& set : sets_.CheaperNeighbours(before, gain)) {
        if (left == 0 || *best_ != before) break;
        if (scores_.contains(set)) continue;
        --left;
        if (const Result<CheckpointScore> score = Score(set); !score) return score.error();
      }
      if (*best_ == before) break;
    }
    return std::nullopt;
  }

  double TimeWith(const BlockSet& set) const {
    return plain_.us + effort_.passes * sets_.TimeOf(set);
  }
  /// Of each pass.
  double LeastGain() const { return kWorthTrying * scores_.at(*best_).us / effort_.passes; }
  bool IsCheaper(const BlockSet& set) const {
    return sets_.TimeOf(set) + LeastGain() < sets_.TimeOf(*best_);
  }

  Result<CheckpointScore> Score(const BlockSet& set) {
    if (const auto found = scores_.find(set); found != scores_.end()) return found->second;
    // Taken for one that does not fit, and comes no closer than nothing.
    if (int(scores_.size()) > effort_.replays) return plain_;
    const Result<CheckpointScore> score = score_(Made(set).modules);
    if (!score) return score;
    scores_[set] = *score;
    if (score->fits && (!best_ || score->us < scores_.at(*best_).us)) best_ = set;
    if (score->high < scores_.at(closest_).high) closest_ = set;
    return score;
  }

  CheckpointChoice Made(const BlockSet& set) const {
    CheckpointChoice choice{
        .modules = sets_.ModulesOf(set), .score = {}, .model_fails = model_fails_};
    if (const auto found = scores_.find(set); found != scores_.end()) choice.score = found->second;
    return choice;
  }

  const CheckpointSets& sets_;
  const CheckpointScore& plain_;
  const ScoreCheckpoints& score_;
  const CheckpointEffort effort_;
  std::map<BlockSet, CheckpointScore> scores_;
  std::optional<BlockSet> best_;
  BlockSet closest_;
  bool model_fails_ = false;
};

}  // namespace

double LeastTime(const CheckpointSets& sets, const CheckpointScore& plain, int passes) {
  const Bytes most = MostAlive(sets, plain);
  const bool possible = sets.PeakOf(sets.Smallest()) <= most;
  const std::optional<BlockSet> cheapest = possible ? sets.Cheapest(most) : std::nullopt;
  if (!cheapest) return std::numeric_limits<double>::infinity();
  return plain.us + passes * sets.TimeOf(*cheapest);
}

Result<CheckpointChoice> BestCheckpoints(const CheckpointSets& sets, const CheckpointScore& plain,
                                         const ScoreCheckpoints& score,
                                         const CheckpointEffort& effort) {
  return Chooser(sets, plain, score, effort).Run();
}

}  // namespace plimsoll
