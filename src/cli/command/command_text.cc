#include "cli/command/command_text.h"

#include <algorithm>
#include <cctype>

namespace plimsoll {

std::string Quoted(std::string_view word) {
  constexpr std::string_view kSafe = "_./=:,@%+-{}";
  const bool safe = !word.empty() && std::ranges::all_of(word, [&](unsigned char c) {
    return std::isalnum(c) != 0 || kSafe.find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (safe) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

CommandText& CommandText::Plain(std::string_view text) {
  text_ += ' ';
  text_ += text;
  return *this;
}

CommandText& CommandText::Word(std::string_view word) { return Plain(Quoted(word)); }

CommandText& CommandText::Words(const std::vector<std::string>& words) {
  for (const std::string& word : words) Word(word);
  return *this;
}

CommandText& CommandText::Flag(std::string_view name, std::string_view value) {
  return Word(name).Word(value);
}

}  // namespace plimsoll
