// What grew between two records, by category and by source line.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "base/result.h"
#include "timeline/recording.h"

namespace plimsoll {

struct Change {
  /// A holder's place; the item alone says what it is otherwise.
  std::string where = {};
  AccountItem item = AccountItem::kUnattributed;
  Bytes before = 0;
  Bytes after = 0;
  std::int64_t count_before = 0;
  std::int64_t count_after = 0;

  Bytes growth() const { return after - before; }
};

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

  Bytes growth() const { return std::max(allocated.growth(), reserved.growth()); }
};

/// Compares two records device by device; that which ran out of memory, or else whose peak grew
/// most, is the answer.
Result<Difference> CompareRecordings(const Recording& before, const Recording& after);

/// Compares two traces. Lines of code that moved are matched by file and function.
Result<Difference> Compare(const RankReport& before, const RankReport& after);

}  // namespace plimsoll
