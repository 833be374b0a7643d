#include "launch/repository.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>

#include "launch/captured_child.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr char kFieldEnd = '\x1f';
constexpr std::string_view kCommitFormat = "--format=%H%x1f%P%x1f%aI%x1f%an%x1f%s";

CapturedChild Git(const std::string& folder, const std::vector<std::string>& words) {
  std::vector<std::string> command = {"git", "-c", "core.hooksPath=/dev/null", "-C", folder};
  command.insert(command.end(), words.begin(), words.end());
  // The folder says which repository, whatever a hook or an alias that called us has set.
  return RunCaptured(command, {{"GIT_DIR", ""},
                               {"GIT_WORK_TREE", ""},
                               {"GIT_INDEX_FILE", ""},
                               {"GIT_COMMON_DIR", ""},
                               {"GIT_PREFIX", ""},
                               {"GIT_OPTIONAL_LOCKS", "0"},
                               {"GIT_TERMINAL_PROMPT", "0"},
                               {"GIT_NO_LAZY_FETCH", "1"},
                               {"LC_ALL", "C.UTF-8"}});
}

/// Without "fatal: ", and its first line alone.
std::string FirstLine(std::string_view text) {
  for (const std::string_view prefix : {"fatal: ", "error: "}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  return std::string(text.substr(0, text.find('\n')));
}

Error Complaint(const CapturedChild& git, std::string what, std::string hint = {}) {
  if (git.end.refused) {
    return {.message = git.end.refused->message,
            .hint = "bisect reads commits by git, which has to be installed"};
  }
  return {.message = fmt::format("{}: git says: {}", what, FirstLine(git.complaint)),
          .hint = std::move(hint)};
}

std::string WithoutEnd(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::vector<std::string> SplitAt(std::string_view text, char end) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(end), text.size());
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(std::min(at + 1, text.size()));
  }
  return parts;
}

Commit CommitOf(std::string_view line) {
  std::vector<std::string> fields = SplitAt(line, kFieldEnd);
  fields.resize(5);
  return {.hash = fields[0],
          .parents = SplitAt(fields[1], ' '),
          .date = fields[2],
          .author = fields[3],
          .subject = fields[4]};
}

}  // namespace

Result<Repository> Repository::Of(const std::string& folder) {
  const CapturedChild git = Git(folder, {"rev-parse", "--show-toplevel", "--show-prefix"});
  if (git.end.code != 0) {
    return Complaint(git, fmt::format("{} lies in no git repository", folder),
                     "go to the folder in which you type the command to train");
  }
  const std::size_t end = git.output.find('\n');
  std::string below = WithoutEnd(git.output.substr(end + 1));
  while (below.ends_with('/')) below.pop_back();
  return Repository(folder, git.output.substr(0, end), std::move(below));
}

Result<Commit> Repository::Find(const std::string& revision) const {
  constexpr std::string_view kHint = "give a commit, a branch or a tag: v1.2, HEAD~20";
  if (revision.empty() || revision.starts_with('-')) {
    return Error{.message = fmt::format("'{}' names no commit", revision),
                 .hint = std::string(kHint)};
  }
  const CapturedChild parsed =
      Git(folder_, {"rev-parse", "--verify", "--quiet", revision + "^{commit}"});
  if (parsed.end.refused) return Complaint(parsed, "");
  if (parsed.end.code != 0) {
    return Error{.message = fmt::format("'{}' names no commit of {}", revision, root_),
                 .hint = std::string(kHint)};
  }
  const CapturedChild git =
      Git(folder_, {"-c", "log.showSignature=false", "log", "-1", "--no-color",
                    std::string(kCommitFormat), WithoutEnd(parsed.output)});
  if (git.end.code != 0) return Complaint(git, fmt::format("{} cannot be read", revision));
  return CommitOf(WithoutEnd(git.output));
}

Result<std::vector<Commit>> Repository::Between(const Commit& good, const Commit& bad) const {
  if (good.hash == bad.hash) {
    return Error{.message = "the two commits are one", .hint = "give an older one to --good"};
  }
  if (Git(folder_, {"merge-base", "--is-ancestor", good.hash, bad.hash}).end.code != 0) {
    return Error{.message = fmt::format("{:.12} does not come before {:.12}", good.hash, bad.hash),
                 .hint =
                     "give two commits of one line: git merge-base names the one that both come "
                     "from"};
  }
  const CapturedChild git =
      Git(folder_, {"-c", "log.showSignature=false", "log", "--first-parent", "--reverse",
                    "--no-color", std::string(kCommitFormat), good.hash + ".." + bad.hash});
  if (git.end.code != 0) return Complaint(git, "the commits cannot be listed");
  std::vector<Commit> commits = {good};
  for (const std::string& line : SplitAt(git.output, '\n')) commits.push_back(CommitOf(line));
  return commits;
}

Result<Commit> Repository::CommonAncestor(const std::string& one, const std::string& other) const {
  const CapturedChild git = Git(folder_, {"merge-base", one, other});
  if (git.end.code != 0) return Complaint(git, "no commit is common to both");
  return Find(WithoutEnd(git.output));
}

bool Repository::Tracks(const std::string& path) const {
  const CapturedChild git = Git(folder_, {"ls-files", "-z", "--", ":(literal)" + path});
  return git.end.code == 0 && !git.output.empty();
}

Result<std::unique_ptr<Worktree>> Worktree::Of(const Repository& repository, const Commit& commit) {
  std::error_code failed;
  std::string scratch = (fs::temp_directory_path(failed) / "plimsoll-XXXXXX").string();
  if (failed || ::mkdtemp(scratch.data()) == nullptr) {
    return Error{.message = "no folder can be made for temporary files",
                 .hint = "name one that can be written in TMPDIR"};
  }
  // Its own name, since messages may show it.
  const std::string name = fs::path(repository.root()).filename().string();
  const std::string root = (fs::path(scratch) / (name.empty() ? "repository" : name)).string();
  std::unique_ptr<Worktree> made(new Worktree(repository.root(), scratch, root));
  const CapturedChild git = Git(
      repository.root(), {"worktree", "add", "--quiet", "--detach", "--force", root, commit.hash});
  if (git.end.code != 0) {
    return Complaint(git, fmt::format("the files of {:.12} cannot be had", commit.hash));
  }
  return made;
}

Worktree::~Worktree() {
  // Twice: also one that was left locked, half made.
  Git(repository_, {"worktree", "remove", "--force", "--force", root_});
  std::error_code ignored;
  fs::remove_all(scratch_, ignored);
}

}  // namespace plimsoll
