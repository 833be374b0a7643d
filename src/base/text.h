// Small questions to a text.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll {

/// No such place in a text.
inline constexpr auto kNowhere = std::string_view::npos;

inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != kNowhere;
}

/// Of ASCII alone, whatever the locale.
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
/// Digits, and at least one.
bool IsNumber(std::string_view text);
std::string Lower(std::string_view text);
/// A title as the beginning of a sentence.
std::string Capitalised(std::string text);

/// "a, b, c". In place of fmt::join, which compiles a formatter into every file that names it.
template <typename Texts>
std::string Joined(const Texts& texts, std::string_view between) {
  std::string joined;
  for (bool first = true; const std::string_view text : texts) {
    if (!first) joined += between;
    joined += text;
    first = false;
  }
  return joined;
}

}  // namespace plimsoll
