// Text laid out to a width: what is seen counts, not bytes, and no word is cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// Cells of a terminal: a letter of any script counts once, an escape sequence not at all.
std::size_t VisibleWidth(std::string_view text);

/// Lines of at most `width` cells, broken at blanks, but not between a number and its unit. A path
/// that is longer loses parts in its middle; any other word that is longer stays whole.
std::vector<std::string> WrapText(std::string_view text, std::size_t width);

/// "data/runs/monday/rank0.pickle" as "data/…/rank0.pickle": the file's name stays, then the first
/// part, then as many folders before the file as there is room for.
std::string ShortenPath(std::string_view path, std::size_t width);

/// Blanks after, or before, so that `width` cells are seen.
std::string PadRight(std::string_view text, std::size_t width);
std::string PadLeft(std::string_view text, std::size_t width);

}  // namespace plimsoll
