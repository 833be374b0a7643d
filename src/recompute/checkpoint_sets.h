// The cheapest set of modules whose checkpointing keeps a CheckpointModel below a target.
#pragma once

#include <optional>
#include <vector>

#include "recompute/checkpoint_model.h"

namespace plimsoll {

/// Indices of the model's blocks, in order; none is part of another.
using BlockSet = std::vector<std::size_t>;

/// What matters of a model below one target: the intervals that can come above it, and the blocks
/// that lower them.
struct CoverProblem {
  /// How far above the target each interval is.
  std::vector<Bytes> over;
  /// Which of the model's they are; the rest by their place here.
  std::vector<std::size_t> blocks;
  std::vector<std::vector<Bytes>> change;
  std::vector<double> time;
  /// Of each block, those that it is part of or that are part of it.
  std::vector<std::vector<std::size_t>> conflicts;

  std::size_t size() const { return blocks.size(); }
};

class CheckpointSets {
 public:
  explicit CheckpointSets(const CheckpointModel& model);

  Bytes PeakOf(const BlockSet& set) const;
  double TimeOf(const BlockSet& set) const;

  /// Nothing where none was found. Exact for few blocks; for many the best of what a greedy choice,
  /// exchanges and a search within a bounded number of steps find.
  std::optional<BlockSet> Cheapest(Bytes target) const;
  /// The one with the lowest peak, about.
  const BlockSet& Smallest() const { return smallest_; }
  bool empty() const { return modules_.empty(); }
  std::vector<std::string> ModulesOf(const BlockSet& set) const;
  /// Without one of its blocks, or with another for it, and cheaper by this much; the one with the
  /// lowest peak first.
  std::vector<BlockSet> CheaperNeighbours(const BlockSet& set, double us) const;

 private:
  CoverProblem ProblemFor(Bytes target) const;
  BlockSet FindSmallest() const;

  std::vector<std::string> modules_;
  /// By block, then by interval: between two moments at which something changes.
  std::vector<std::vector<Bytes>> change_;
  /// The most that is alive in each interval.
  std::vector<Bytes> plain_;
  std::vector<double> time_;
  std::vector<std::vector<std::size_t>> conflicts_;
  BlockSet smallest_;
};

}  // namespace plimsoll
