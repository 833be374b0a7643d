#include "cli/command/manual.h"

#include <fmt/format.h>

#include "cli/command/help.h"

namespace plimsoll {
namespace {

/// Text as roff takes it: these characters would be commands, or come out as typographic ones that
/// cannot be copied into a shell.
std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '\\':
        escaped += "\\(rs";
        break;
      case '-':
        escaped += "\\-";
        break;
      case '"':
        escaped += "\\(dq";
        break;
      case '\'':
        escaped += "\\(aq";
        break;
      case '`':
        escaped += "\\(ga";
        break;
      case '^':
        escaped += "\\(ha";
        break;
      case '~':
        escaped += "\\(ti";
        break;
      default:
        escaped += c;
    }
  }
  // A line that begins with a dot is a request.
  return escaped.starts_with('.') ? "\\&" + escaped : escaped;
}

std::string Bold(const std::string& text) { return "\\fB" + Escaped(text) + "\\fR"; }
std::string Italic(const std::string& text) { return "\\fI" + Escaped(text) + "\\fR"; }

/// Names are not to be hyphenated, nor lines filled with blanks.
std::string Title(const std::string& page, const std::string& what, const std::string& version) {
  return fmt::format(
      ".TH \"{}\" 1 \"\" \"plimsoll {}\" \"User Commands\"\n"
      ".nh\n.ad l\n"
      ".SH NAME\n{} \\- {}\n",
      Escaped(page), Escaped(version), Escaped(page), Escaped(what));
}

/// A word in bold or a whole command line, and below it what it is.
std::string Described(const std::string& tag, const std::string& text) {
  return fmt::format(".TP\n{}\n{}\n", tag, text.empty() ? "\\&" : Escaped(text));
}

std::string Synopsis(const CommandInfo& command) {
  std::string line = Bold("plimsoll " + command.name) + " [flags]";
  for (const ArgumentInfo& argument : command.arguments) {
    const std::string name = Italic(argument.name) + (argument.many ? "..." : "");
    line += argument.required ? " " + name : " [" + name + "]";
  }
  return ".SH SYNOPSIS\n" + line + "\n";
}

/// "-o, --output OUT" with the names in bold.
std::string DescribedFlag(const FlagInfo& flag) {
  std::string tag;
  for (const std::string& name : flag.names) tag += (tag.empty() ? "" : ", ") + Bold(name);
  if (!flag.type.empty()) tag += " " + Italic(flag.type);
  return Described(tag, flag.help);
}

}  // namespace

std::string ManualOf(const CommandInfo& command, const std::string& version) {
  std::string page = Title("plimsoll-" + command.name, command.what, version) + Synopsis(command);
  if (!command.arguments.empty()) page += ".SH ARGUMENTS\n";
  for (const ArgumentInfo& argument : command.arguments)
    page += Described(Italic(argument.name), argument.help);
  page += ".SH OPTIONS\n";
  for (const FlagInfo& flag : command.flags) page += DescribedFlag(flag);
  page += DescribedFlag({.names = {"-h", "--help"}, .help = "the same on the terminal"});
  if (!command.examples.empty()) page += ".SH EXAMPLES\n";
  for (const Example& example : command.examples)
    page += Described(Bold(example.line), example.purpose);
  for (const std::string& remark : command.remarks) {
    page +=
        (&remark == &command.remarks.front() ? ".SH NOTES\n" : ".PP\n") + Escaped(remark) + "\n";
  }
  return page + ".SH SEE ALSO\n" + Bold("plimsoll") + "(1)\n";
}

std::string ManualOverview(const std::vector<CommandInfo>& commands, const std::string& version) {
  std::string page = Title("plimsoll", "why a training job ran out of GPU memory", version);
  page += ".SH SYNOPSIS\n" + Bold("plimsoll") + " " + Italic("COMMAND") + " [flags] " +
          Italic("FILE") + "...\n.SH COMMANDS\n";
  std::string pages;
  for (const CommandInfo& command : commands) {
    page += Described(Bold(command.name), command.what);
    pages += (pages.empty() ? "" : ",\n") + Bold("plimsoll-" + command.name) + "(1)";
  }
  for (const CommandInfo& command : CommandsOfTheProgram())
    page += Described(Bold(command.name), command.what);
  page += ".SH EXIT STATUS\n";
  page += Described(Bold("0"), "it answered");
  page += Described(Bold("1"),
                    "it answered, and the answer is that something does not fit, differs "
                    "or grew; the pages of the commands say what");
  page += Described(Bold("2"), "a file or a flag cannot be used; one line says why");
  page += Described(Bold("3"), "it is unknown whether a job fits; the first line says why");
  return page + ".SH SEE ALSO\n" + pages + "\n";
}

}  // namespace plimsoll
