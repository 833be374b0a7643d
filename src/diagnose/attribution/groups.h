// Who holds the memory at an instant, by whatever a regular expression finds in its stack and
// marks.
#pragma once

#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "answer/holder.h"
#include "base/result.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

/// A regular expression of the user's, checked once.
class GroupPattern {
 public:
  static Result<GroupPattern> Parse(const std::string& text);

  /// What it finds in a text, or what its first group in brackets finds there.
  std::optional<std::string> FirstIn(std::string_view text) const;
  const std::string& text() const { return text_; }

 private:
  GroupPattern(std::string text, std::regex regex)
      : text_(std::move(text)), regex_(std::make_shared<const std::regex>(std::move(regex))) {}

  std::string text_;
  std::shared_ptr<const std::regex> regex_;
};

/// An allocation is of the first match: in the names of its frames' files and functions, the
/// innermost first; then in the texts that the program attached to it; then in the marks that it
/// was made in, the innermost first. What has none is a group without a name. The largest first.
std::vector<HolderGroup> GroupsAt(const Phases& phases, Position at, const GroupPattern& pattern);

}  // namespace plimsoll
