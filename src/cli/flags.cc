#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "base/suggest.h"

namespace plimsoll {
namespace {

/// Thrown out of the library's parser, which knows no hints.
struct Refused {
  Error error;
};

Refused OfFlag(const std::string& name, Error error) {
  error.message = fmt::format("{}: {}", name, error.message);
  return {std::move(error)};
}

std::string SeeHelp(const CLI::App& app) {
  return fmt::format("see plimsoll {} --help", app.get_name());
}

/// "N" of "N:INT in [1 - 1000]", which the library makes of a type and its checks.
std::string TypeOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

bool IsNegativeNumber(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && word[1] >= '0' && word[1] <= '9';
}

/// Lines of a footer: examples are indented, and two blanks end the command.
void ReadFooter(const std::string& footer, CommandInfo& info) {
  for (std::string line : CLI::detail::split(footer, '\n')) {
    if (line.empty() || line == "Examples:") continue;
    if (!line.starts_with("  ")) {
      info.remarks.push_back(line);
      continue;
    }
    line.erase(0, line.find_first_not_of(' '));
    const std::size_t gap = line.find("  ");
    Example& example = info.examples.emplace_back(Example{.line = line.substr(0, gap)});
    if (gap != line.npos) example.purpose = line.substr(line.find_first_not_of(' ', gap));
  }
}

Error ErrorOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> left = app.remaining();
  if (!left.empty()) {
    return {.message = fmt::format("'{}' is one argument too many", left.front()),
            .hint = SeeHelp(app)};
  }
  const std::string what = error.what();
  const std::string flag = what.substr(0, what.find(':'));
  const CLI::Option* const option = app.get_option_no_throw(flag);
  if (error.get_name() == "ArgumentMismatch" && option != nullptr) {
    const bool missing = what.ends_with("missing");
    return {.message = missing ? fmt::format("{} needs {} after it", flag, TypeOf(*option))
                               : fmt::format("{} is given more than once", flag),
            .hint = SeeHelp(app)};
  }
  return {.message = what, .hint = SeeHelp(app)};
}

}  // namespace

Flags::Flags(std::string name, std::string what)
    : app_(std::make_unique<CLI::App>(std::move(what), std::move(name))) {
  app_->set_help_flag();  // help is ours
}

Flags::~Flags() = default;
Flags::Flags(Flags&&) noexcept = default;

void Flags::Argument(const std::string& name, std::string& to, const std::string& help) {
  app_->add_option(name, to, help)->required();
}

void Flags::Arguments(const std::string& name, std::vector<std::string>& to,
                      const std::string& help, bool required) {
  app_->add_option(name, to, help)->required(required);
}

void Flags::CommandLine(const std::string& name, std::vector<std::string>& to,
                        const std::string& help, const std::string& only_with) {
  command_line_ = &to;
  command_line_switch_ = only_with;
  command_line_info_ = {
      .name = "-- " + name, .help = help, .required = only_with.empty(), .many = true};
}

void Flags::Switch(const std::string& name, bool& to, const std::string& help) {
  app_->add_flag(name, to, help);
}

void Flags::Value(const std::string& name, const std::string& type, const std::string& help,
                  std::function<std::optional<Error>(const std::string&)> read) {
  const auto take = [name, read = std::move(read)](const std::string& text) {
    if (std::optional<Error> error = read(text)) throw OfFlag(name, *std::move(error));
  };
  app_->add_option_function<std::string>(name, take, help)->type_name(type);
}

void Flags::Repeated(const std::string& name, const std::string& type, const std::string& help,
                     std::function<std::optional<Error>(const std::string&)> read) {
  const auto take = [name, read = std::move(read)](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      if (std::optional<Error> error = read(text)) throw OfFlag(name, *std::move(error));
    }
  };
  app_->add_option_function<std::vector<std::string>>(name, take, help)
      ->type_name(type)
      ->allow_extra_args(false);
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
  app_->add_option(name, to, help)->type_name(type)->allow_extra_args(false);
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
  choices_[name] = choices;
  Value(name, type, help, [&to, choices](const std::string& text) -> std::optional<Error> {
    if (std::ranges::find(choices, text) == choices.end()) {
      return Error{.message = fmt::format("'{}' is not known", text),
                   .hint = SuggestOr(text, {choices.begin(), choices.end()},
                                     fmt::format("give {}", fmt::join(choices, ", ")))};
    }
    to = text;
    return std::nullopt;
  });
}

void Flags::Examples(const std::string& text) { app_->footer(text); }

CommandInfo Flags::Describe() const {
  CommandInfo info{.name = app_->get_name(), .what = app_->get_description()};
  for (const CLI::Option* option : std::as_const(*app_).get_options()) {
    const bool named = option->nonpositional();
    if (!named) {
      info.arguments.push_back({.name = option->get_name(true, false),
                                .help = option->get_description(),
                                .required = option->get_required(),
                                .many = option->get_items_expected_max() > 1});
      continue;
    }
    FlagInfo& flag = info.flags.emplace_back(
        FlagInfo{.type = TypeOf(*option), .help = option->get_description()});
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    const auto choices = choices_.find(flag.names.back());
    if (choices != choices_.end()) flag.choices = choices->second;
  }
  if (command_line_ != nullptr) info.arguments.push_back(command_line_info_);
  ReadFooter(app_->get_footer(), info);
  return info;
}

/// Before anything else is judged: after a mistyped flag the rest is misread.
std::optional<Error> Flags::FindUnknown(const std::vector<std::string>& words) const {
  const CommandInfo info = Describe();
  std::vector<std::string_view> known = {"--help"};
  for (const FlagInfo& flag : info.flags)
    known.insert(known.end(), flag.names.begin(), flag.names.end());
  for (const std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with('-') || word == "-" || IsNegativeNumber(word)) continue;
    const std::string name = word.substr(0, word.find('='));
    const bool is_known = std::ranges::any_of(known, [&](std::string_view flag) {
      const bool brief = flag.size() == 2;  // "-ofile"
      return brief && !name.starts_with("--") ? name.starts_with(flag) : name == flag;
    });
    if (is_known) continue;
    return Error{.message = fmt::format("{} has no flag {}", info.name, name),
                 .hint = SuggestOr(name, known, SeeHelp(*app_))};
  }
  return std::nullopt;
}

/// By ourselves: the library would take "[1,2]" apart.
std::optional<Error> Flags::TakeCommandLine(std::vector<std::string>& words) {
  const auto dashes = std::ranges::find(words, "--");
  const std::string& only_with = command_line_switch_;
  if (!only_with.empty() && std::find(words.begin(), dashes, only_with) == dashes) {
    return std::nullopt;
  }
  const std::string name = app_->get_name() + (only_with.empty() ? "" : " " + only_with);
  if (dashes == words.end() || std::next(dashes) == words.end()) {
    return Error{.message = fmt::format("{} needs a command after --", name),
                 .hint = fmt::format("plimsoll {} -- python train.py{}", name,
                                     only_with.empty() ? "" : " --batch-size {batch}")};
  }
  command_line_->assign(std::next(dashes), words.end());
  words.erase(dashes, words.end());
  return std::nullopt;
}

std::optional<Error> Flags::Parse(std::vector<std::string> words) {
  if (command_line_ != nullptr) {
    if (std::optional<Error> missing = TakeCommandLine(words)) return missing;
  }
  if (std::optional<Error> unknown = FindUnknown(words)) return unknown;
  std::ranges::reverse(words);  // as the library takes them
  try {
    app_->parse(std::move(words));
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const CLI::ParseError& error) {
    return ErrorOf(*app_, error);
  }
  return std::nullopt;
}

}  // namespace plimsoll
