// What launchers and people put in front of a line: "[rank3]: ", "3: ", "node7: ", time stamps,
// "> ". A message that is wrapped over several lines has it in front of each of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace plimsoll {

struct LinePrefix {
  std::size_t length = 0;
  std::optional<int> rank;
};

/// The prefix of a line. A host's name ("node7: ") looks like the beginning of many sentences, so
/// it counts only where the line before begins with the same one.
LinePrefix ReadLinePrefix(std::string_view line, std::string_view line_before);

/// Where the line that holds `offset` begins; not looked for further back than 4 KiB.
std::size_t LineBegin(std::string_view text, std::size_t offset);

}  // namespace plimsoll
