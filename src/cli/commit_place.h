// Where a command stands while it is run on the files of another commit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "launch/repository.h"

namespace plimsoll {

/// The command as it is typed in the files of any commit: a program that is named by its path and
/// is not committed (the Python of a virtual environment) is the user's own, and what is committed
/// and named by a whole path is found in the commit.
std::vector<std::string> MovableCommand(const Repository& repository,
                                        std::vector<std::string> command);

/// While it lives, this process stands at the same place below the commit's root as it did below
/// the user's, and PYTHONPATH names the commit's folders where it named the user's. `links` are
/// paths that are not committed and are found there all the same.
class CommitPlace {
 public:
  static Result<std::unique_ptr<CommitPlace>> Of(const Repository& repository, const Commit& commit,
                                                 const std::vector<std::string>& links);
  ~CommitPlace();
  CommitPlace(const CommitPlace&) = delete;
  CommitPlace& operator=(const CommitPlace&) = delete;

 private:
  CommitPlace(std::unique_ptr<Worktree> files, std::string stood, const std::string& python_path)
      : files_(std::move(files)), stood_(std::move(stood)), python_path_(python_path) {}

  std::unique_ptr<Worktree> files_;
  std::string stood_;
  std::string python_path_;
};

}  // namespace plimsoll
