#include "cli/command/completion.h"

#include <fmt/format.h>

#include "base/suggest.h"

namespace plimsoll {
namespace {

std::string Names(const std::vector<CommandInfo>& commands) {
  std::string names;
  for (const CommandInfo& command : commands) names += command.name + " ";
  return names + "help completion";
}

std::string FlagNames(const CommandInfo& command) {
  std::string names;
  for (const FlagInfo& flag : command.flags) names += flag.names.back() + " ";
  return names + "--help";
}

/// Text inside single quotes, for any of the three.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string Bash(const std::vector<CommandInfo>& commands) {
  std::string cases;
  for (const CommandInfo& command : commands) {
    cases += fmt::format("    {}) flags={} ;;\n", command.name, Quoted(FlagNames(command)));
  }
  return fmt::format(R"(# bash completion of plimsoll: source <(plimsoll completion bash)
_plimsoll() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} flags=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W {0} -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{1}    help) COMPREPLY=($(compgen -W {0} -- "$current")); return ;;
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$current")); return ;;
  esac
  # Without a dash, the names of files.
  [[ $current == -* ]] && COMPREPLY=($(compgen -W "$flags" -- "$current"))
}}
complete -o default -F _plimsoll plimsoll
)",
                     Quoted(Names(commands)), cases);
}

std::string Zsh(const std::vector<CommandInfo>& commands) {
  std::string cases;
  for (const CommandInfo& command : commands) {
    cases += fmt::format("    {}) flags=({}) ;;\n", command.name, FlagNames(command));
  }
  return fmt::format(R"(#compdef plimsoll
# zsh completion of plimsoll: source <(plimsoll completion zsh)
_plimsoll() {{
  local -a flags
  if ((CURRENT == 2)); then
    compadd -- {0}
    return
  fi
  case ${{words[2]}} in
{1}    help) compadd -- {0}; return ;;
    completion) compadd -- bash zsh fish; return ;;
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    compadd -- $flags
  else
    _files
  fi
}}
# Installed, this file is the function itself; sourced, it has to be made known.
if [[ $funcstack[1] == _plimsoll ]]; then
  _plimsoll "$@"
else
  compdef _plimsoll plimsoll
fi
)",
                     Names(commands), cases);
}

/// "-s o -l output"
std::string FishNames(const FlagInfo& flag) {
  std::string names;
  for (const std::string& name : flag.names) {
    const bool brief = !name.starts_with("--");
    names += brief ? " -s " + name.substr(1) : " -l " + name.substr(2);
  }
  return names;
}

std::string Fish(const std::vector<CommandInfo>& commands) {
  std::string script =
      "# fish completion of plimsoll: plimsoll completion fish | source\n"
      "complete -c plimsoll -n __fish_use_subcommand -f -a 'help completion'\n";
  for (const CommandInfo& command : commands) {
    script += fmt::format("complete -c plimsoll -n __fish_use_subcommand -f -a {} -d {}\n",
                          command.name, Quoted(command.what));
    for (const FlagInfo& flag : command.flags) {
      script += fmt::format("complete -c plimsoll -n '__fish_seen_subcommand_from {}'{}{} -d {}\n",
                            command.name, FishNames(flag), flag.type.empty() ? "" : " -r",
                            Quoted(flag.help));
    }
  }
  return script;
}

}  // namespace

Result<std::string> CompletionScript(const std::string& shell,
                                     const std::vector<CommandInfo>& commands) {
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh") return Zsh(commands);
  if (shell == "fish") return Fish(commands);
  return Error{.message = shell.empty() ? "which shell?" : "there is no script for " + shell,
               .hint = SuggestOr(shell, {"bash", "zsh", "fish"},
                                 "give bash, zsh or fish: source <(plimsoll completion bash)")};
}

}  // namespace plimsoll
