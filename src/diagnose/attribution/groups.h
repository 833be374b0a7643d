// Who holds the memory at an instant, by whatever a regular expression finds in its stack and
// marks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer/holder.h"
#include "base/result.h"
#include "diagnose/phases/phases.h"

namespace re2 {
class RE2;
}

namespace plimsoll {

/// A regular expression of the user's in RE2's syntax, checked once. Matching takes time linear in
/// the text, for every expression.
class GroupPattern {
 public:
  static Result<GroupPattern> Parse(const std::string& text);

  /// What it finds in a text, or what its first group in brackets finds there.
  std::optional<std::string> FirstIn(std::string_view text) const;
  const std::string& text() const { return text_; }

 private:
  GroupPattern(std::string text, std::shared_ptr<const re2::RE2> matcher)
      : text_(std::move(text)), matcher_(std::move(matcher)) {}

  std::string text_;
  std::shared_ptr<const re2::RE2> matcher_;
};

/// An allocation is of the first match: in the names of its frames' files and functions, the
/// innermost first; then in the texts that the program attached to it; then in the marks that it
/// was made in, the innermost first. What has none is a group without a name. The largest first.
std::vector<HolderGroup> GroupsAt(const Phases& phases, Position at, const GroupPattern& pattern);

}  // namespace plimsoll
