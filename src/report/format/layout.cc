#include "report/format/layout.h"

#include <algorithm>
#include <iterator>

namespace plimsoll {
namespace {

constexpr std::string_view kLeftOut = "…";

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// "9.67 GiB" and "3 s" are read as one.
bool IsUnit(std::string_view word) {
  static constexpr std::string_view kUnits[] = {"bytes", "KiB", "MiB", "GiB", "%", "ms", "s"};
  while (!word.empty() && std::string_view(",.;:)").find(word.back()) != word.npos) {
    word.remove_suffix(1);
  }
  return std::ranges::find(kUnits, word) != std::end(kUnits);
}

bool IsNumber(std::string_view word) {
  return !word.empty() && word.back() >= '0' && word.back() <= '9' &&
         word.find_first_not_of("(+-~0123456789.,") == word.npos;
}

/// What may not be torn apart.
std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  bool number = false;
  for (const std::string_view word : SplitAt(text, ' ')) {
    if (number && IsUnit(word)) {
      words.back() += ' ' + std::string(word);
    } else {
      words.emplace_back(word);
    }
    number = IsNumber(word);
  }
  return words;
}

}  // namespace

std::size_t VisibleWidth(std::string_view text) {
  std::size_t cells = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    const bool continues = (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
    if (!continues) ++cells;
  }
  return cells;
}

std::string PadRight(std::string_view text, std::size_t width) {
  const std::size_t seen = VisibleWidth(text);
  return std::string(text) + std::string(width > seen ? width - seen : 0, ' ');
}

std::string PadLeft(std::string_view text, std::size_t width) {
  const std::size_t seen = VisibleWidth(text);
  return std::string(width > seen ? width - seen : 0, ' ') + std::string(text);
}

std::string ShortenPath(std::string_view path, std::size_t width) {
  const bool address = path.find("://") != std::string_view::npos;
  if (address || VisibleWidth(path) <= width) return std::string(path);
  const char separator = path.find('/') != std::string_view::npos ? '/' : '\\';
  const std::vector<std::string_view> parts = SplitAt(path, separator);
  if (parts.size() < 2) return std::string(path);
  std::string tail = separator + std::string(parts.back());
  const std::string head = std::string(parts.front()) + separator;
  const std::size_t room = width - std::min(width, VisibleWidth(head) + VisibleWidth(kLeftOut));
  if (VisibleWidth(tail) > room) return std::string(kLeftOut) + tail;
  // The folders nearest to the file tell most.
  for (std::size_t i = parts.size() - 2; i > 1; --i) {
    const std::string longer = separator + std::string(parts[i]) + tail;
    if (VisibleWidth(longer) > room) break;
    tail = longer;
  }
  return head + std::string(kLeftOut) + tail;
}

std::vector<std::string> WrapText(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  std::size_t used = 0;
  bool empty = true;
  for (const std::string& word : WordsOf(text)) {
    const std::string shown = ShortenPath(word, width);
    const std::size_t cells = VisibleWidth(shown);
    if (!empty && used + 1 + cells > width) {
      lines.emplace_back();
      used = 0;
      empty = true;
    }
    if (!empty) lines.back() += ' ';
    used += cells + (empty ? 0 : 1);
    lines.back() += shown;
    empty = false;
  }
  return lines;
}

}  // namespace plimsoll
