#include "launch/hook_files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "files/output.h"
#include "launch/child.h"
#include "launch/scratch.h"

namespace plimsoll {

// From python/plimsoll/recording/hook, by plimsoll_embed.
std::string HookSite();
std::string HookBegin();
std::string HookRecorder();
std::string HookHistory();
std::string HookSignals();
std::string HookModules();
std::string HookOwners();
std::string HookObjects();
std::string HookInside();
std::string HookGraphs();
std::string HookNameless();
std::string HookRegister();
std::string HookFilesOfRecord();
std::string HookWork();
std::string HookStatus();
std::string HookInEnvironment();
std::string HookInstaller();
std::string CaptureArchive();

namespace {

/// As the files of one run have them, and what is read from there by the installer too.
std::optional<Error> WriteEach(const std::string& folder) {
  const std::pair<const char*, std::string> files[] = {
      {"plimsoll_begin.py", HookBegin()},       {"plimsoll_recorder.py", HookRecorder()},
      {"plimsoll_history.py", HookHistory()},   {"plimsoll_signals.py", HookSignals()},
      {"plimsoll_modules.py", HookModules()},   {"plimsoll_owners.py", HookOwners()},
      {"plimsoll_objects.py", HookObjects()},   {"plimsoll_inside.py", HookInside()},
      {"plimsoll_graphs.py", HookGraphs()},     {"plimsoll_nameless.py", HookNameless()},
      {"plimsoll_register.py", HookRegister()}, {"plimsoll_files.py", HookFilesOfRecord()},
      {"plimsoll_work.py", HookWork()},         {"plimsoll_status.py", HookStatus()}};
  for (const auto& [name, text] : files) {
    if (auto error = WriteFile((std::filesystem::path(folder) / name).string(), text)) return error;
  }
  return std::nullopt;
}

const char* HookWord(HookAction action) {
  switch (action) {
    case HookAction::kInstall:
      return "install";
    case HookAction::kStatus:
      return "status";
    case HookAction::kRemove:
      break;
  }
  return "remove";
}

}  // namespace

std::optional<Error> WriteHookFiles(const std::string& folder) {
  const std::filesystem::path in = folder;
  if (auto error = WriteEach(folder)) return error;
  if (auto error = WriteFile((in / "sitecustomize.py").string(), HookSite())) return error;
  return WriteFile((in / "package.zip").string(), CaptureArchive());
}

Result<int> RunHookInstaller(HookAction action, const std::string& python) {
  const Scratch scratch;
  if (!scratch.ok()) {
    return Error{.message = fmt::format("no folder can be made for temporary files: {}",
                                        std::strerror(errno)),
                 .hint = "name one that can be written in TMPDIR"};
  }
  if (auto error = WriteEach(scratch.path())) return *error;
  if (auto error = WriteFile(scratch.File("plimsoll_site.py"), HookInEnvironment())) return *error;
  const std::string installer = scratch.File("plimsoll_install.py");
  if (auto error = WriteFile(installer, HookInstaller())) return *error;
  // -I: the environment of that Python alone, whatever PYTHONPATH says.
  const std::string ran = scratch.File("ran");
  ChildEnd end = RunChild({python, "-I", installer, HookWord(action), ran}, {}, Bond::kTied);
  if (end.refused) {
    end.refused->hint = "name the Python of the environment with --python";
    return *end.refused;
  }
  std::error_code failed;
  if (!std::filesystem::exists(ran, failed)) {
    return Error{.message = fmt::format("'{}' is no Python that runs", python),
                 .hint = "name the Python of the environment with --python"};
  }
  return end.code;
}

}  // namespace plimsoll
