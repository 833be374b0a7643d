// The flow of `plimsoll explain`: files in, one explanation out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "cli/command/command.h"
#include "cli/file_kind.h"
#include "diagnose/explain.h"

namespace plimsoll {

struct Explained {
  /// Nothing where no file could be used.
  std::optional<Explanation> explanation;
  /// A file that cannot be used has been complained of; the exit code tells.
  int code = kFine;
  /// Those that were explained.
  std::vector<std::string> files = {};
};

/// Reads every file on all cores. Several are the ranks of one job. The error texts of a run are
/// told together with its snapshots as long as each completes one: one that does not would be told
/// as a process of its own.
Explained ExplainFiles(const FolderFiles& files, const ExplainOptions& options);

/// The same for whatever was typed: files and folders. What is no record is complained of.
Explained ExplainPaths(const std::vector<std::string>& paths, const ExplainOptions& options);

}  // namespace plimsoll
