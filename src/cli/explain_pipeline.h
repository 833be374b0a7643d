// The flow of `plimsoll explain`: files in, one explanation out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "cli/command.h"
#include "diagnose/explain.h"

namespace plimsoll {

struct Explained {
  /// Nothing where no file could be used.
  std::optional<Explanation> explanation;
  /// A file that cannot be used has been complained of; the exit code tells.
  int code = kFine;
};

/// Reads every file on all cores. Several are the ranks of one job.
Explained ExplainFiles(const std::vector<std::string>& files, const ExplainOptions& options);

}  // namespace plimsoll
