#include "train/planning/lever_search.h"

#include <algorithm>
#include <utility>

namespace plimsoll::train {

LeverSearch::LeverSearch(BlockProfile whole, BlockProfile piece)
    : whole_(std::move(whole)), piece_(std::move(piece)) {}

const BlockProfile& LeverSearch::ProfileFor(const LeverLimits& limits, std::int64_t rows) const {
  return rows == limits.batch ? whole_ : piece_;
}

const LeverSearch::Sized& LeverSearch::SizedFor(const LeverLimits& limits, std::int64_t rows) {
  std::unique_ptr<Sized>& sized = sized_[{rows, rows == limits.batch}];
  if (!sized) {
    BlockProfile::Model profile = ProfileFor(limits, rows).At(rows);
    const CheckpointSets sets(profile.model);
    sized = std::make_unique<Sized>(Sized{std::move(profile), sets});
  }
  return *sized;
}

LeverEstimate LeverSearch::Estimate(const LeverLimits& limits, std::int64_t rows,
                                    const BlockSet& set) {
  const Sized& sized = SizedFor(limits, rows);
  std::vector<CheckpointPolicy::Range> ranges;
  bool chunked_loss = limits.chunked_loss.value_or(false);
  for (const std::size_t block : set) {
    const BlockProfile::Choice& choice = sized.profile.choices[block];
    ranges.insert(ranges.end(), choice.ranges.begin(), choice.ranges.end());
    chunked_loss |= choice.chunked_loss;
  }
  const auto pieces = static_cast<double>((limits.batch + rows - 1) / rows);
  const double once = ProfileFor(limits, rows).Microseconds(rows) + sized.sets.TimeOf(set);
  return {.levers = {.micro_batch = rows,
                     .checkpoint = CheckpointPolicy::Plan(std::move(ranges)),
                     .chunked_loss = chunked_loss},
          .peak = sized.sets.PeakOf(set),
          .microseconds = pieces * once};
}

LeverEstimate LeverSearch::EstimateOf(const Levers& levers, const LeverLimits& limits) {
  const std::int64_t rows = std::min(levers.micro_batch, limits.batch);
  const BlockProfile::Model& profile = SizedFor(limits, rows).profile;
  int blocks = 0;
  for (const BlockProfile::Choice& choice : profile.choices) {
    for (const auto& range : choice.ranges) blocks = std::max(blocks, range.end);
  }
  BlockSet set;
  // Backwards: a block with those within it comes after the block alone, and is not both.
  for (std::size_t i = profile.choices.size(); i-- > 0;) {
    const BlockProfile::Choice& choice = profile.choices[i];
    const bool has = std::ranges::all_of(choice.ranges,
                                         [&](const auto& range) {
                                           return levers.checkpoint.HasGroup(range, blocks);
                                         }) &&
                     (levers.chunked_loss || !choice.chunked_loss);
    const auto& conflicts = profile.model.blocks[i].conflicts;
    const bool free = std::ranges::none_of(
        set, [&](std::size_t taken) { return std::ranges::count(conflicts, taken) > 0; });
    if (has && free) set.insert(set.begin(), i);
  }
  return Estimate(limits, rows, set);
}

std::optional<LeverEstimate> LeverSearch::Fastest(const LeverLimits& limits, Bytes budget,
                                                  double margin) {
  std::optional<LeverEstimate> best;
  for (const std::int64_t rows : MicroBatches(limits)) {
    const Bytes base = ProfileFor(limits, rows).base();
    const auto room = static_cast<Bytes>(static_cast<double>(budget - base) / margin);
    const auto set = SizedFor(limits, rows).sets.Cheapest(base + room);
    if (!set) continue;
    LeverEstimate found = Estimate(limits, rows, *set);
    if (!best || found.microseconds < best->microseconds) best = std::move(found);
  }
  return best;
}

LeverEstimate LeverSearch::Smallest(const LeverLimits& limits) {
  std::optional<LeverEstimate> least;
  for (const std::int64_t rows : MicroBatches(limits)) {
    LeverEstimate found = Estimate(limits, rows, SizedFor(limits, rows).sets.Smallest());
    if (!least || found.peak < least->peak) least = std::move(found);
  }
  return *least;
}

}  // namespace plimsoll::train
