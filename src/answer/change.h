// What grew between two accounts of memory, by category and by source line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answer/account.h"
#include "answer/holder.h"
#include "base/bytes.h"

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

/// The lines of two accounts, the largest change first. What is free on the device is left out:
/// what other programs do is not growth.
std::vector<Change> ChangesByCategory(const std::vector<AccountLine>& before,
                                      const std::vector<AccountLine>& after);

/// Holders, matched by line and category. Lines of code that moved are matched by file and
/// function.
std::vector<Change> ChangesByLine(const std::vector<Holder>& before,
                                  const std::vector<Holder>& after);

}  // namespace plimsoll
