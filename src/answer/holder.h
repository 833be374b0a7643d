// Memory that one place in a program holds at an instant.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "answer/category.h"
#include "answer/owner.h"
#include "base/bytes.h"

namespace plimsoll {

/// What one module took of a line's memory.
struct HolderPart {
  std::string module = {};
  Bytes bytes = 0;
  std::int64_t count = 0;
};

struct Holder {
  std::string where = {};  // "train.py:57 in forward"
  Category category = Category::kUnattributed;
  Bytes bytes = 0;
  std::int64_t count = 0;
  /// The module, as the user names it or by file and line of its forwards; may be empty. Of several
  /// the one that took most.
  std::string module = {};
  /// Where a line called several modules: what each took, the largest first.
  std::vector<HolderPart> parts = {};
  /// The variables that kept it when the record was made, the largest first, where the record
  /// tells.
  std::vector<Owner> owners = {};
  /// The user's frames, innermost first.
  std::vector<std::string> stack = {};
  /// What the program said of its blocks after it had made them; a few.
  std::vector<std::string> labels = {};
  /// How many smaller holders of any category are added up in this row; 0 in an ordinary one.
  std::int64_t others = 0;
};

/// Those that are new, as long as there are few.
void AddLabels(const std::vector<std::string>& from, std::vector<std::string>& to);

/// What a regular expression of the user's finds alike.
struct HolderGroup {
  /// What it found; empty for all in which it found nothing.
  std::string name = {};
  Bytes bytes = 0;
  std::int64_t count = 0;
};

/// "blocks.*.mlp.2" of "blocks.11.mlp.2": layers that are alike are one holder, the parts of a
/// layer are not.
std::string FoldedLayers(std::string_view module);

/// Rows of one module each become rows of one line and category each, with their modules as parts;
/// the largest first.
std::vector<Holder> ByLine(std::vector<Holder> rows);

/// Keeps the `most` largest of holders in descending order, and adds the rest up in one more row.
void KeepLargest(std::vector<Holder>& holders, std::size_t most);

}  // namespace plimsoll
