#include "launch/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "launch/hook_files.h"
#include "launch/plain_file.h"

namespace plimsoll {

namespace {

namespace fs = std::filesystem;

constexpr mode_t kOwnerAlone = 0700;
constexpr int kMostNumbered = 100000;
constexpr std::size_t kLongestLog = std::size_t{1} << 20;

Error CannotMake(const std::string& path, int reason) {
  return {.message = fmt::format("the folder cannot be made: {}", std::strerror(reason)),
          .file = path,
          .hint = "give another with -o"};
}

/// Why a folder that is there cannot be that of a run; empty where it can, and is its owner's alone
/// from now on. Looked at through one descriptor, so that it is the same folder throughout.
std::string WhyNot(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return errno == ENOTDIR ? "is no folder" : "cannot be opened";
  struct stat found {};
  std::string reason;
  std::error_code failed;
  if (::fstat(folder, &found) != 0 || found.st_uid != ::geteuid()) {
    reason = "belongs to another user";
  } else if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    reason = "can be written by others";
  } else if (!fs::is_empty(path, failed) || failed) {
    reason = "is not empty";
  } else if (::fchmod(folder, kOwnerAlone) != 0) {
    reason = "cannot be made yours alone";
  }
  ::close(folder);
  return reason;
}

bool IsLink(const std::string& path) {
  std::error_code failed;
  return fs::is_symlink(fs::symlink_status(path, failed));
}

/// The folder that is wanted, or one beside it.
Result<RunFolder> MakeWanted(const std::string& path) {
  std::error_code failed;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) fs::create_directories(parent, failed);
  if (::mkdir(path.c_str(), kOwnerAlone) == 0) return RunFolder{path};
  if (errno != EEXIST) return CannotMake(path, errno);
  const std::string why_not = IsLink(path) ? "is a link" : WhyNot(path);
  if (why_not.empty()) return RunFolder{path};
  for (int i = 2; i <= kMostNumbered; ++i) {
    const std::string beside = fmt::format("{}.{}", path, i);
    if (::mkdir(beside.c_str(), kOwnerAlone) == 0) {
      return RunFolder{.path = beside, .instead = fmt::format("{} {}", path, why_not)};
    }
    if (errno != EEXIST) return CannotMake(beside, errno);
  }
  return Error{.message = fmt::format("there are too many folders {}.N", path),
               .hint = "remove some, or give another with -o"};
}

Result<RunFolder> MakeNext() {
  for (int i = 1; i <= kMostNumbered; ++i) {
    const std::string path = fmt::format("plimsoll-run-{}", i);
    if (::mkdir(path.c_str(), kOwnerAlone) == 0) return RunFolder{path};
    if (errno != EEXIST) return CannotMake(path, errno);
  }
  return Error{.message = "there are too many folders plimsoll-run-N here",
               .hint = "remove some, or give one with -o"};
}

/// Whether anybody could rename what is in the folder and put something else there.
bool AnybodyMayReplace(const fs::path& in) {
  struct stat found {};
  if (::stat(in.c_str(), &found) != 0) return true;
  return (found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0;
}

/// Python runs what lies in the hook's folder, wherever that is by then: nobody else may write to
/// it, nor to the folder that it lies in.
Result<std::string> MakeHookFolder(const fs::path& run) {
  const bool safe = !AnybodyMayReplace(run.parent_path());
  if (safe && run.string().find(':') == std::string::npos) {
    const std::string hook = (run / "hook").string();
    if (::mkdir(hook.c_str(), kOwnerAlone) != 0) return CannotMake(hook, errno);
    return hook;
  }
  std::error_code failed;
  const fs::path temporary = fs::temp_directory_path(failed);
  std::string hook = (temporary / "plimsoll-hook-XXXXXX").string();
  if (failed || AnybodyMayReplace(temporary) || ::mkdtemp(hook.data()) == nullptr) {
    return Error{.message = "no folder can be made that is safe from other users",
                 .file = run.string(),
                 .hint = "give a folder of your own with -o"};
  }
  return hook;
}

std::optional<Error> InstallHook(RunFolder& folder) {
  std::error_code failed;
  const fs::path absolute = fs::absolute(folder.path, failed).lexically_normal();
  if (failed) return CannotMake(folder.path, failed.value());
  Result<std::string> hook = MakeHookFolder(absolute);
  if (!hook) return hook.error();
  folder.hook = *std::move(hook);
  return WriteHookFiles(folder.hook);
}

}  // namespace

Result<RunFolder> MakeRunFolder(const std::optional<std::string>& wanted) {
  if (wanted && wanted->empty()) {
    return Error{.message = "the folder's name is empty", .hint = "give another with -o"};
  }
  Result<RunFolder> folder = wanted ? MakeWanted(*wanted) : MakeNext();
  if (!folder) return folder;
  if (std::optional<Error> error = InstallHook(*folder)) {
    RemoveHook(*folder);
    return *error;
  }
  return folder;
}

std::vector<Variable> HookVariables(const RunFolder& folder, const HookSettings& settings) {
  std::string path = folder.hook;
  // An empty entry would be the current folder.
  if (const char* own = std::getenv("PYTHONPATH"); own != nullptr && *own != '\0') {
    path += std::string(":") + own;
  }
  return {{"PYTHONPATH", path},
          {"PLIMSOLL_RUN", fs::absolute(folder.path).lexically_normal().string()},
          {"PLIMSOLL_RUN_HOOK", fs::absolute(folder.hook).lexically_normal().string()},
          {"PLIMSOLL_RUN_BUDGET", fmt::format("{}", settings.budget.value_or(0))},
          {"PLIMSOLL_RUN_MODULES", settings.modules ? "1" : "0"},
          {"PLIMSOLL_RUN_MAX_ENTRIES", fmt::format("{}", settings.max_entries)}};
}

bool TorchWasImported(const RunFolder& folder) {
  std::error_code failed;
  return fs::exists(fs::path(folder.hook) / "torch_was_imported", failed);
}

std::vector<std::string> HookComplaints(const RunFolder& folder) {
  std::vector<std::string> complaints;
  const std::optional<std::string> log =
      ReadPlainFile(fs::path(folder.path) / "log.txt", kLongestLog);
  if (!log) return complaints;
  std::string_view rest = *log;
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
  if (!folder.hook.empty()) fs::remove_all(folder.hook, ignored);
  fs::remove(folder.path, ignored);  // nothing, unless it is empty
}

}  // namespace plimsoll
