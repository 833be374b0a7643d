#include "job/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/input.h"
#include "base/output.h"

namespace plimsoll {

// From python/plimsoll/recording/hook, by plimsoll_embed.
std::string HookSite();
std::string HookRecorder();
std::string HookHistory();
std::string HookSignals();
std::string HookModules();

namespace {

namespace fs = std::filesystem;

constexpr mode_t kOwnerAlone = 0700;
constexpr int kMostRuns = 100000;

fs::path HookOf(const RunFolder& folder) { return fs::path(folder.path) / "hook"; }

Error CannotMake(const std::string& path, int reason) {
  return {.message = fmt::format("the folder cannot be made: {}", std::strerror(reason)),
          .file = path,
          .hint = "give another with -o"};
}

Result<RunFolder> MakeWanted(const std::string& path) {
  std::error_code failed;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) fs::create_directories(parent, failed);
  if (::mkdir(path.c_str(), kOwnerAlone) == 0) return RunFolder{path};
  if (errno != EEXIST) return CannotMake(path, errno);
  if (!fs::is_directory(path, failed)) return CannotMake(path, ENOTDIR);
  if (fs::is_empty(path, failed) && !failed) return RunFolder{path};
  return Error{.message = "there is something in it already",
               .file = path,
               .hint = "each run has a folder of its own; without -o it gets one"};
}

Result<RunFolder> MakeNext() {
  for (int i = 1; i <= kMostRuns; ++i) {
    const std::string path = fmt::format("plimsoll-run-{}", i);
    if (::mkdir(path.c_str(), kOwnerAlone) == 0) return RunFolder{path};
    if (errno != EEXIST) return CannotMake(path, errno);
  }
  return Error{.message = "there are too many folders plimsoll-run-N here",
               .hint = "remove some, or give one with -o"};
}

std::optional<Error> InstallHook(const RunFolder& folder) {
  const fs::path hook = HookOf(folder);
  // Not one that is there already: Python will run what is in it.
  if (::mkdir(hook.c_str(), kOwnerAlone) != 0) return CannotMake(hook.string(), errno);
  const std::pair<const char*, std::string> files[] = {{"sitecustomize.py", HookSite()},
                                                       {"plimsoll_recorder.py", HookRecorder()},
                                                       {"plimsoll_history.py", HookHistory()},
                                                       {"plimsoll_signals.py", HookSignals()},
                                                       {"plimsoll_modules.py", HookModules()}};
  for (const auto& [name, text] : files) {
    if (auto error = WriteFile((hook / name).string(), text)) return error;
  }
  return std::nullopt;
}

}  // namespace

Result<RunFolder> MakeRunFolder(const std::optional<std::string>& wanted) {
  std::error_code failed;
  const std::string absolute = fs::absolute(wanted.value_or("plimsoll-run-1"), failed).string();
  if (wanted && wanted->empty()) {
    return Error{.message = "the folder's name is empty", .hint = "give another with -o"};
  }
  if (failed || absolute.find(':') != std::string::npos) {
    return Error{.message = "a folder with ':' in its path cannot stand in PYTHONPATH",
                 .file = absolute,
                 .hint = "give another with -o"};
  }
  Result<RunFolder> folder = wanted ? MakeWanted(*wanted) : MakeNext();
  if (!folder) return folder;
  if (std::optional<Error> error = InstallHook(*folder)) return *error;
  return folder;
}

std::vector<Variable> HookVariables(const RunFolder& folder, const HookSettings& settings) {
  const fs::path absolute = fs::absolute(folder.path).lexically_normal();
  std::string path = (absolute / "hook").string();
  // An empty entry would be the current folder.
  if (const char* own = std::getenv("PYTHONPATH"); own != nullptr && *own != '\0') {
    path += std::string(":") + own;
  }
  return {{"PYTHONPATH", path},
          {"PLIMSOLL_RUN", absolute.string()},
          {"PLIMSOLL_RUN_BUDGET", fmt::format("{}", settings.budget.value_or(0))},
          {"PLIMSOLL_RUN_MODULES", settings.modules ? "1" : "0"},
          {"PLIMSOLL_RUN_MAX_ENTRIES", fmt::format("{}", settings.max_entries)}};
}

bool TorchWasImported(const RunFolder& folder) {
  std::error_code failed;
  return fs::exists(HookOf(folder) / "torch_was_imported", failed);
}

std::vector<std::string> HookComplaints(const RunFolder& folder) {
  std::vector<std::string> complaints;
  const Result<Input> log = Input::Open((fs::path(folder.path) / "log.txt").string());
  if (!log) return complaints;
  std::string_view rest = log->bytes();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    // "process 4321: the history failed: …"
    const std::size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    const std::string text(line.substr(colon + 2));
    if (std::ranges::find(complaints, text) == complaints.end()) complaints.push_back(text);
  }
  return complaints;
}

void RemoveHook(const RunFolder& folder) {
  std::error_code ignored;
  fs::remove_all(HookOf(folder), ignored);
  fs::remove(folder.path, ignored);  // nothing, unless it is empty
}

}  // namespace plimsoll
