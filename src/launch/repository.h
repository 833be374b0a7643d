// A git repository of the user's, by the program git: its commits, and any of them in a folder of
// its own. The user's files and index are never touched, no hook is run and nothing is fetched.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace plimsoll {

struct Commit {
  std::string hash;
  std::vector<std::string> parents = {};
  /// Of the author, as ISO 8601 has it.
  std::string date = {};
  std::string author = {};
  std::string subject = {};
};

class Repository {
 public:
  /// That which the folder lies in.
  static Result<Repository> Of(const std::string& folder);

  const std::string& root() const { return root_; }
  /// Where the folder lies below the root; empty for the root itself.
  const std::string& below() const { return below_; }

  /// The commit that a name stands for.
  Result<Commit> Find(const std::string& revision) const;
  /// From `good` to `bad`, both among them, along first parents.
  Result<std::vector<Commit>> Between(const Commit& good, const Commit& bad) const;
  /// The newest commit that both come from.
  Result<Commit> CommonAncestor(const std::string& one, const std::string& other) const;
  /// Whether a path, as it is named in the folder, has something in it that is committed.
  bool Tracks(const std::string& path) const;

 private:
  Repository(std::string folder, std::string root, std::string below)
      : folder_(std::move(folder)), root_(std::move(root)), below_(std::move(below)) {}

  std::string folder_;
  std::string root_;
  std::string below_;
};

/// The files of one commit, in a folder among the temporary ones; gone with the object.
class Worktree {
 public:
  static Result<std::unique_ptr<Worktree>> Of(const Repository& repository, const Commit& commit);
  ~Worktree();
  Worktree(const Worktree&) = delete;
  Worktree& operator=(const Worktree&) = delete;

  const std::string& root() const { return root_; }

 private:
  Worktree(std::string repository, std::string scratch, std::string root)
      : repository_(std::move(repository)), scratch_(std::move(scratch)), root_(std::move(root)) {}

  std::string repository_;
  std::string scratch_;
  std::string root_;
};

}  // namespace plimsoll
