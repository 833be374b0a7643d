#include "cli/commit_place.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPythonPath = "PYTHONPATH";

/// Whether a whole path is the root, or lies below it.
bool LiesBelow(const std::string& path, const std::string& root) {
  return path == root || path.starts_with(root + "/");
}

/// With the commit's root in place of the user's.
std::string MovedPaths(std::string_view list, const std::string& from, const std::string& to) {
  std::string moved;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(':'), list.size());
    std::string entry(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    if (LiesBelow(entry, from)) entry = to + entry.substr(from.size());
    moved += (moved.empty() ? "" : ":") + entry;
  }
  return moved;
}

std::optional<Error> Link(const fs::path& users, const fs::path& place) {
  std::error_code failed;
  if (!fs::exists(users, failed)) {
    return Error{.message = "--link names what is not there",
                 .file = users.string(),
                 .hint = "give a file or a folder that is not committed, such as data"};
  }
  if (fs::exists(fs::symlink_status(place, failed))) {
    return Error{.message = "--link names what is committed: each commit has its own",
                 .file = users.string(),
                 .hint = "leave it out"};
  }
  fs::create_directories(place.parent_path(), failed);
  fs::create_symlink(users, place, failed);
  if (!failed) return std::nullopt;
  return Error{.message = "it cannot be linked: " + failed.message(), .file = users.string()};
}

}  // namespace

std::vector<std::string> MovableCommand(const Repository& repository,
                                        std::vector<std::string> command) {
  std::error_code failed;
  const fs::path here = fs::current_path(failed);
  for (std::size_t i = 0; i < command.size(); ++i) {
    std::string& word = command[i];
    if (word.find('/') == std::string::npos) continue;
    const bool whole = word.starts_with('/');
    if (!whole && i > 0) continue;
    const fs::path path = (whole ? fs::path(word) : here / word).lexically_normal();
    const bool committed =
        LiesBelow(path.string(), repository.root()) && repository.Tracks(path.string());
    word = committed ? "./" + path.lexically_relative(here).string() : path.string();
  }
  return command;
}

Result<std::unique_ptr<CommitPlace>> CommitPlace::Of(const Repository& repository,
                                                     const Commit& commit,
                                                     const std::vector<std::string>& links) {
  std::error_code failed;
  const fs::path here = fs::current_path(failed);
  Result<std::unique_ptr<Worktree>> files = Worktree::Of(repository, commit);
  if (!files) return files.error();
  const fs::path place = fs::path((*files)->root()) / repository.below();
  if (!fs::is_directory(place, failed)) {
    return Error{.message = fmt::format("the folder {} is not there yet", repository.below())};
  }
  for (const std::string& link : links) {
    if (std::optional<Error> error = Link(here / link, place / link)) return *error;
  }
  const char* const paths = std::getenv(kPythonPath);
  const std::string moved =
      paths == nullptr ? "" : MovedPaths(paths, repository.root(), (*files)->root());
  std::unique_ptr<CommitPlace> made(
      new CommitPlace(std::move(*files), here.string(), paths == nullptr ? "" : paths));
  fs::current_path(place, failed);
  if (failed) return Error{.message = "its files cannot be entered: " + failed.message()};
  if (!moved.empty()) ::setenv(kPythonPath, moved.c_str(), 1);
  return made;
}

CommitPlace::~CommitPlace() {
  std::error_code ignored;
  fs::current_path(stood_, ignored);
  if (!python_path_.empty()) ::setenv(kPythonPath, python_path_.c_str(), 1);
}

}  // namespace plimsoll
