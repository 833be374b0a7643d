#include "cli/command/help.h"

#include <fmt/format.h>

#include "base/text.h"
#include "report/format/table.h"
#include "report/format/writer.h"

namespace plimsoll {
namespace {

/// "plimsoll explain [flags] FILE..."
std::string Usage(const CommandInfo& command) {
  std::string usage = "plimsoll " + command.name + " [flags]";
  for (const ArgumentInfo& argument : command.arguments) {
    const std::string name = argument.name + (argument.many ? "..." : "");
    usage += argument.required ? " " + name : " [" + name + "]";
  }
  return usage;
}

/// "-o, --output OUT"
std::string Spelled(const FlagInfo& flag) {
  return fmt::format("{}{}{}", Joined(flag.names, ", "), flag.type.empty() ? "" : " ", flag.type);
}

void AddCommand(const CommandInfo& command, Table& table) {
  table.Row({command.name, command.what});
  if (!command.examples.empty()) table.Under(command.examples.front().line);
}

}  // namespace

std::vector<CommandInfo> CommandsOfTheProgram() {
  return {{.name = "help",
           .what = "this list, or the help of one command",
           .examples = {{.line = "plimsoll help explain"}}},
          {.name = "completion",
           .what = "a script that completes commands and flags in bash, zsh or fish",
           .examples = {{.line = "source <(plimsoll completion bash)"}}}};
}

std::string HelpOf(const CommandInfo& command, const TextStyle& style) {
  Writer w(style);
  w.Headline(fmt::format("plimsoll {}: {}", command.name, command.what));
  w.Line();
  w.Wrapped(Usage(command), "usage: ", "         ");
  w.Line();
  Table table({{}, {.wraps = true}});
  for (const ArgumentInfo& argument : command.arguments) table.Row({argument.name, argument.help});
  for (const FlagInfo& flag : command.flags) table.Row({Spelled(flag), flag.help});
  table.Row({"-h, --help", "this text"});
  table.WriteTo(w);
  w.Heading("Examples");
  Table examples({{}, {.wraps = true, .dim = true}});
  for (const Example& example : command.examples) examples.Row({example.line, example.purpose});
  examples.WriteTo(w);
  if (!command.remarks.empty()) w.Line();
  for (const std::string& remark : command.remarks) w.Wrapped(remark, "", "");
  return w.Take();
}

std::string Overview(const std::vector<CommandInfo>& commands, const TextStyle& style) {
  Writer w(style);
  w.Headline("Plimsoll tells why a training job ran out of GPU memory.");
  w.Line();
  w.Line("usage: plimsoll COMMAND [flags] FILE...");
  w.Heading("Commands, each with an example");
  Table table({{}, {.wraps = true}});
  for (const CommandInfo& command : commands) AddCommand(command, table);
  for (const CommandInfo& command : CommandsOfTheProgram()) AddCommand(command, table);
  table.WriteTo(w);
  w.Line();
  w.Wrapped(
      "plimsoll --version prints the version. A job that has just died usually left only a "
      "log: begin with plimsoll explain train.log.",
      "", "");
  return w.Take();
}

}  // namespace plimsoll
