// A command line to type, put together word by word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// A word as a shell takes it for one: in quotes where it has signs that a shell would read.
std::string Quoted(std::string_view word);

class CommandText {
 public:
  /// "plimsoll plan"
  explicit CommandText(std::string_view command) : text_("plimsoll " + std::string(command)) {}

  CommandText& Word(std::string_view word);
  CommandText& Words(const std::vector<std::string>& words);
  CommandText& Flag(std::string_view name) { return Word(name); }
  CommandText& Flag(std::string_view name, std::string_view value);
  /// As it is: ">plan.json".
  CommandText& Plain(std::string_view text);

  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

}  // namespace plimsoll
