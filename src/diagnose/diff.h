// What grew between two records, by category and by source line.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"
#include "base/result.h"

namespace plimsoll {

struct Change {
  std::string what;  // a category, or a holder's place
  Category category = Category::kUnattributed;
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
  /// At each record's own instant (its peak or its out-of-memory); the largest change first.
  std::vector<Change> categories;
  std::vector<Change> holders;
};

/// Compares two traces. Lines of code that moved are matched by file and function.
Result<Difference> Compare(const RankReport& before, const RankReport& after);

}  // namespace plimsoll
