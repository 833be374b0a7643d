#include "cli/command/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/suggest.h"
#include "base/text.h"

namespace plimsoll {
namespace {

/// "-o,--output" as {"-o", "--output"}.
std::vector<std::string> NamesOf(std::string_view names) {
  std::vector<std::string> apart;
  for (;;) {
    const std::size_t comma = names.find(',');
    apart.emplace_back(names.substr(0, comma));
    if (comma == names.npos) return apart;
    names.remove_prefix(comma + 1);
  }
}

/// A number is a value, though it begins as a flag does.
bool LooksLikeAFlag(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && !IsDigit(word[1]);
}

/// Lines of a footer: examples are indented, and two blanks end the command.
void ReadExampleLine(std::string line, CommandInfo& info) {
  if (line.empty()) return;
  if (!line.starts_with("  ")) {
    info.remarks.push_back(std::move(line));
    return;
  }
  line.erase(0, line.find_first_not_of(' '));
  const std::size_t gap = line.find("  ");
  Example& example = info.examples.emplace_back(Example{.line = line.substr(0, gap)});
  if (gap != line.npos) example.purpose = line.substr(line.find_first_not_of(' ', gap));
}

}  // namespace

Flags::Flags(std::string name, std::string what)
    : info_{.name = std::move(name), .what = std::move(what)} {}

std::string Flags::SeeHelp() const { return fmt::format("see plimsoll {} --help", info_.name); }

void Flags::Argument(const std::string& name, std::string& to, const std::string& help) {
  info_.arguments.push_back({.name = name, .help = help});
  take_argument_.push_back([&to](std::string word) { to = std::move(word); });
}

void Flags::Arguments(const std::string& name, std::vector<std::string>& to,
                      const std::string& help, bool required) {
  info_.arguments.push_back({.name = name, .help = help, .required = required, .many = true});
  take_argument_.push_back([&to](std::string word) { to.push_back(std::move(word)); });
}

void Flags::CommandLine(const std::string& name, std::vector<std::string>& to,
                        const std::string& help, const std::string& only_with) {
  command_line_ = &to;
  command_line_switch_ = only_with;
  command_line_info_ = {
      .name = "-- " + name, .help = help, .required = only_with.empty(), .many = true};
}

Flags::Declared& Flags::Declare(const std::string& names, const std::string& type,
                                const std::string& help, Reader read) {
  info_.flags.push_back({.names = NamesOf(names), .type = type, .help = help});
  return declared_.emplace_back(Declared{.read = std::move(read)});
}

void Flags::Switch(const std::string& name, bool& to, const std::string& help) {
  const auto set = [&to](const std::string&) -> std::optional<Error> {
    to = true;
    return std::nullopt;
  };
  Declare(name, "", help, set).again = true;
}

void Flags::Value(const std::string& name, const std::string& type, const std::string& help,
                  Reader read) {
  Declare(name, type, help, std::move(read));
}

void Flags::Repeated(const std::string& name, const std::string& type, const std::string& help,
                     Reader read) {
  Declare(name, type, help, std::move(read)).again = true;
}

void Flags::Text(const std::string& name, const std::string& type, std::optional<std::string>& to,
                 const std::string& help) {
  Value(name, type, help, [&to](const std::string& text) -> std::optional<Error> {
    to = text;
    return std::nullopt;
  });
}

void Flags::Texts(const std::string& name, const std::string& type, std::vector<std::string>& to,
                  const std::string& help) {
  Repeated(name, type, help, [&to](const std::string& text) -> std::optional<Error> {
    to.push_back(text);
    return std::nullopt;
  });
}

void Flags::Size(const std::string& name, std::optional<Bytes>& to, const std::string& help) {
  Value(name, "SIZE", help, [&to](const std::string& text) -> std::optional<Error> {
    const Result<Bytes> size = ParseBytes(text);
    if (!size) return size.error();
    to = *size;
    return std::nullopt;
  });
}

void Flags::Count(const std::string& name, const std::string& type, std::optional<std::int64_t>& to,
                  const std::string& help, std::int64_t least, std::int64_t most) {
  const bool open = most == std::numeric_limits<std::int64_t>::max();
  const std::string range =
      open ? fmt::format("a number from {} on", least) : fmt::format("{} to {}", least, most);
  Value(name, type, help, [=, &to](const std::string& text) -> std::optional<Error> {
    std::int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    const bool whole = read.ec == std::errc() && read.ptr == end;
    if (!whole || number < least || number > most) {
      return Error{.message = fmt::format("'{}' cannot be used", text), .hint = "give " + range};
    }
    to = number;
    return std::nullopt;
  });
}

void Flags::Seconds(const std::string& name, double& to, const std::string& help) {
  Value(name, "SECONDS", help, [&to](const std::string& text) -> std::optional<Error> {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    // Written so that nan is outside.
    if (read.ec != std::errc() || read.ptr != end || !(number >= 0 && number <= 1e6)) {
      return Error{.message = fmt::format("'{}' cannot be used", text),
                   .hint = "give 0 to 1000000 seconds"};
    }
    to = number;
    return std::nullopt;
  });
}

void Flags::Choice(const std::string& name, const std::string& type, std::string& to,
                   std::vector<std::string> choices, const std::string& help) {
  Value(name, type, help, [&to, choices](const std::string& text) -> std::optional<Error> {
    if (std::ranges::find(choices, text) == choices.end()) {
      return Error{.message = fmt::format("'{}' is not known", text),
                   .hint = SuggestOr(text, {choices.begin(), choices.end()},
                                     "give " + Joined(choices, ", "))};
    }
    to = text;
    return std::nullopt;
  });
  info_.flags.back().choices = std::move(choices);
}

void Flags::Examples(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ReadExampleLine(text.substr(begin, end - begin), info_);
    begin = end + 1;
  }
}

CommandInfo Flags::Describe() const {
  CommandInfo info = info_;
  if (command_line_ != nullptr) info.arguments.push_back(command_line_info_);
  return info;
}

Flags::Word Flags::Apart(const std::string& word) const {
  const std::size_t equals = word.find('=');
  for (std::size_t i = 0; i < info_.flags.size(); ++i) {
    for (const std::string& name : info_.flags[i].names) {
      if (word == name) return {.flag = i, .name = name};
      if (word.substr(0, equals) == name) {
        return {.flag = i, .name = name, .value = word.substr(equals + 1)};
      }
      const bool brief = name.size() == 2;  // "-ofile"
      if (brief && word.starts_with(name)) {
        return {.flag = i, .name = name, .value = word.substr(2)};
      }
    }
  }
  return {.name = word.substr(0, equals)};
}

/// Before anything else is judged: after a mistyped flag the rest is misread.
std::optional<Error> Flags::FindUnknown(const std::vector<std::string>& words) const {
  for (const std::string& word : words) {
    if (word == "--") break;
    if (!LooksLikeAFlag(word)) continue;
    const Word apart = Apart(word);
    if (apart.flag) continue;
    std::vector<std::string_view> known = {"--help"};
    for (const FlagInfo& flag : info_.flags) {
      known.insert(known.end(), flag.names.begin(), flag.names.end());
    }
    return Error{.message = fmt::format("{} has no flag {}", info_.name, apart.name),
                 .hint = SuggestOr(apart.name, known, SeeHelp())};
  }
  return std::nullopt;
}

std::optional<Error> Flags::TakeCommandLine(std::vector<std::string>& words) {
  const auto dashes = std::ranges::find(words, "--");
  const std::string& only_with = command_line_switch_;
  if (!only_with.empty() && std::find(words.begin(), dashes, only_with) == dashes) {
    return std::nullopt;
  }
  const std::string name = info_.name + (only_with.empty() ? "" : " " + only_with);
  if (dashes == words.end() || std::next(dashes) == words.end()) {
    return Error{.message = fmt::format("{} needs a command after --", name),
                 .hint = fmt::format("plimsoll {} -- python train.py{}", name,
                                     only_with.empty() ? "" : " --batch-size {batch}")};
  }
  command_line_->assign(std::next(dashes), words.end());
  words.erase(dashes, words.end());
  return std::nullopt;
}

/// Reads the flag at `at` and the value after it, and moves `at` to the last word that was read.
std::optional<Error> Flags::TakeFlag(const std::vector<std::string>& words, std::size_t& at) {
  Word word = Apart(words[at]);
  const FlagInfo& info = info_.flags[*word.flag];
  Declared& declared = declared_[*word.flag];
  if (std::exchange(declared.given, true) && !declared.again) {
    return Error{.message = word.name + " is given more than once", .hint = SeeHelp()};
  }
  if (info.type.empty()) {
    if (word.value) {
      return Error{.message = word.name + " takes no value", .hint = SeeHelp()};
    }
    return declared.read("");
  }
  if (!word.value) {
    if (at + 1 == words.size() || LooksLikeAFlag(words[at + 1])) {
      return Error{.message = fmt::format("{} needs {} after it", word.name, info.type),
                   .hint = SeeHelp()};
    }
    word.value = words[++at];
  }
  std::optional<Error> error = declared.read(*word.value);
  if (error) error->message = fmt::format("{}: {}", info.names.back(), error->message);
  return error;
}

std::optional<Error> Flags::TakeArgument(const std::string& word) {
  const std::size_t at = arguments_taken_;
  if (at == take_argument_.size()) {
    return Error{.message = fmt::format("'{}' is one argument too many", word), .hint = SeeHelp()};
  }
  take_argument_[at](word);
  some_taken_ = true;
  if (!info_.arguments[at].many) {
    ++arguments_taken_;
    some_taken_ = false;
  }
  return std::nullopt;
}

std::optional<Error> Flags::Parse(std::vector<std::string> words) {
  if (command_line_ != nullptr) {
    if (std::optional<Error> missing = TakeCommandLine(words)) return missing;
  }
  if (std::optional<Error> unknown = FindUnknown(words)) return unknown;
  bool all_arguments = false;  // after "--"
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (!all_arguments && words[at] == "--") {
      all_arguments = true;
      continue;
    }
    const bool flag = !all_arguments && LooksLikeAFlag(words[at]);
    if (std::optional<Error> error = flag ? TakeFlag(words, at) : TakeArgument(words[at])) {
      return error;
    }
  }
  for (std::size_t at = arguments_taken_ + (some_taken_ ? 1 : 0); at < info_.arguments.size();
       ++at) {
    if (!info_.arguments[at].required) continue;
    return Error{.message = info_.arguments[at].name + " is required", .hint = SeeHelp()};
  }
  return std::nullopt;
}

}  // namespace plimsoll
