// Memory that one place in a program holds at an instant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answer/category.h"
#include "base/bytes.h"

namespace plimsoll {

struct Holder {
  std::string where = {};  // "train.py:57 in forward"
  Category category = Category::kUnattributed;
  Bytes bytes = 0;
  std::int64_t count = 0;
  /// The module, as the user names it or by file and line of its forwards; may be empty.
  std::string module = {};
  /// The user's frames, innermost first.
  std::vector<std::string> stack = {};
  /// How many smaller holders of any category are added up in this row; 0 in an ordinary one.
  std::int64_t others = 0;
};

/// Keeps the `most` largest of holders in descending order, and adds the rest up in one more row.
void KeepLargest(std::vector<Holder>& holders, std::size_t most);

}  // namespace plimsoll
