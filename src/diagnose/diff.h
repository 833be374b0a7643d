// What grew between two records, by category and by source line.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "answer/change.h"
#include "answer/explanation.h"
#include "base/result.h"
#include "timeline/recording.h"

namespace plimsoll {

/// The peaks of one device of one process in both runs.
struct RankDifference {
  std::string name;  // "rank 2", "device 1"
  Change allocated;
  Change reserved;
  bool ran_out_before = false;
  bool ran_out_after = false;

  Bytes growth() const { return std::max(allocated.growth(), reserved.growth()); }
  bool RunsOutNow() const { return ran_out_after && !ran_out_before; }
};

/// Of the pair of ranks or devices that says most; `ranks` has all of them.
struct Difference {
  std::string verdict;
  std::string file_before;
  std::string file_after;
  Change allocated;  // peaks
  Change reserved;
  /// What else differs between the runs, in sentences.
  std::vector<std::string> notes = {};
  /// At each record's own instant (its peak or its out-of-memory); the largest change first.
  std::vector<Change> categories;
  std::vector<Change> holders;
  std::vector<RankDifference> ranks = {};
};

/// One run, reduced to what is compared: each device of each of its processes.
struct ComparedRun {
  std::vector<RankReport> ranks = {};
  /// The allocator's, as PYTORCH_CUDA_ALLOC_CONF has them; nothing where none are recorded.
  std::optional<std::string> settings = {};

  /// Adds a process.
  std::optional<Error> Add(const Recording& recording);
};

/// Compares two runs, rank by rank and device by device; the pair that ran out of memory in the
/// second alone, or else in the second, or else whose peak grew most, is the answer.
Result<Difference> CompareRuns(const ComparedRun& before, const ComparedRun& after);
/// The same of one process each.
Result<Difference> CompareRecordings(const Recording& before, const Recording& after);

/// Compares two traces. Lines of code that moved are matched by file and function.
Result<Difference> Compare(const RankReport& before, const RankReport& after);

}  // namespace plimsoll
