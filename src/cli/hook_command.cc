#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "base/suggest.h"
#include "cli/command/command.h"
#include "cli/terminal/terminal.h"
#include "launch/hook_files.h"

namespace plimsoll {
namespace {

struct HookFlags {
  std::string action;
  std::optional<std::string> python;
};

struct HookWordAndAction {
  std::string_view word;
  HookAction action;
};
constexpr auto kHookActions = std::to_array<HookWordAndAction>({
    {"install", HookAction::kInstall},
    {"status", HookAction::kStatus},
    {"remove", HookAction::kRemove},
});

int RunHook(const HookFlags& flags) {
  for (const auto& [word, action] : kHookActions) {
    if (flags.action != word) continue;
    const Result<int> code = RunHookInstaller(action, flags.python.value_or("python3"));
    return code ? *code : Complain(code.error());
  }
  return Complain({.message = fmt::format("a hook cannot be asked to '{}'", flags.action),
                   .hint = SuggestOr(flags.action, {"install", "status", "remove"},
                                     "say install, status or remove")});
}

}  // namespace

Command AddHook(Flags& declare) {
  auto flags = std::make_shared<HookFlags>();
  declare.Argument(
      "install|status|remove", flags->action,
      "puts the hook into an environment of Python, says whether it is there, or takes "
      "it out");
  declare.Text("--python", "PATH", flags->python,
               "the Python of that environment; python3 of the PATH unless given");
  declare.Examples(
      "  plimsoll hook install --python venv/bin/python   once, in each image or environment\n"
      "  PLIMSOLL_RUN=/shared/run-7 srun python train.py   then: every process records itself\n"
      "  plimsoll explain /shared/run-7   all ranks of all nodes together\n"
      "Without PLIMSOLL_RUN in its environment a process imports nothing of it. The exit code of "
      "status is 1 where it is not installed.");
  return [flags] { return RunHook(*flags); };
}

}  // namespace plimsoll
