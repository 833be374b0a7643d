#include "launch/shell_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "launch/plain_file.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 9> kShells = {"bash", "sh",   "dash",   "zsh", "ksh",
                                                     "fish", "qsub", "sbatch", "bsub"};
constexpr std::array<std::string_view, 3> kLaunchers = {"torchrun", "accelerate", "deepspeed"};
/// In an error's hint.
constexpr std::size_t kMostShown = 300;

bool IsShell(std::string_view program) {
  return std::ranges::find(kShells, fs::path(program).filename().string()) != kShells.end();
}

bool IsShellScript(const std::string& word) {
  const fs::path ending = fs::path(word).extension();
  return ending == ".sh" || ending == ".bash" || ending == ".slurm";
}

bool StartsPython(const std::string& word) {
  const std::string name = fs::path(word).filename().string();
  return name.starts_with("python") || std::ranges::find(kLaunchers, name) != kLaunchers.end();
}

/// Whether a command ends before this word: `|`, `&&`, `;`, `> log`, `2>&1`.
bool EndsCommand(std::string_view word) {
  if (word.starts_with("2>") || word.starts_with("1>")) return true;
  return std::string_view("|&;><").find(word.front()) != std::string_view::npos;
}

/// The words of each line. A line goes on behind a backslash; a comment is left out.
std::vector<Words> LinesOf(std::string_view script) {
  std::vector<Words> lines(1);
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) lines.back().push_back(std::move(word));
    word.clear();
  };
  bool comment = false;
  for (std::size_t i = 0; i < script.size(); ++i) {
    const char sign = script[i];
    if (sign == '\\' && i + 1 < script.size() && script[i + 1] == '\n') {
      ++i;
      end_word();
    } else if (sign == '\n') {
      end_word();
      lines.emplace_back();
      comment = false;
    } else if (comment || (sign == '#' && word.empty())) {
      comment = true;
    } else if (std::isspace(static_cast<unsigned char>(sign)) != 0) {
      end_word();
    } else {
      word += sign;
    }
  }
  end_word();
  return lines;
}

/// Of `bash -x train.sh 8` the script; empty if there is none.
std::string ScriptOf(const Words& command) {
  if (IsShellScript(command.front())) return command.front();
  const auto found = std::find_if(command.begin() + 1, command.end(),
                                  [](const std::string& word) { return !word.starts_with("-"); });
  return found == command.end() ? "" : *found;
}

std::string TextOf(const Words& command, const std::string& script) {
  // `bash -c "python train.py"`: the text itself.
  if (std::ranges::find(command, "-c") != command.end()) return script;
  constexpr std::size_t kMostRead = 1 << 20;
  return ReadPlainFile(script, kMostRead).value_or("");
}

}  // namespace

std::string PythonCommandIn(std::string_view script) {
  std::string last;
  for (const Words& line : LinesOf(script)) {
    const auto begin = std::ranges::find_if(line, StartsPython);
    const auto end = std::find_if(begin, line.end(), EndsCommand);
    if (begin != end) last = fmt::format("{}", fmt::join(begin, end, " "));
  }
  if (last.ends_with(';')) last.pop_back();
  return last.size() > kMostShown ? "" : last;
}

std::optional<Error> RefuseShell(const std::vector<std::string>& command) {
  if (command.empty()) return std::nullopt;
  if (!IsShell(command.front()) && !IsShellScript(command.front())) return std::nullopt;
  const std::string script = ScriptOf(command);
  const std::string python = PythonCommandIn(TextOf(command, script));
  return Error{.message = fmt::format("'{}' is run by a shell, and --run follows a Python command",
                                      fmt::join(command, " ")),
               .hint = python.empty()
                           ? "give the command that it runs: python train.py --batch-size {batch}"
                           : fmt::format("give the one in it, with {{batch}} as its batch size: {}",
                                         python)};
}

}  // namespace plimsoll
