// What `report` makes of each file: its explanation, and its runs packed for a page or unpacked for
// an export.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "report/exports/exports.h"
#include "report/page.h"
#include "timeline/history.h"

namespace plimsoll {

struct PartOptions {
  /// For a page; histories for an export otherwise.
  bool page = true;
  /// Replay the allocator settings that are often advised.
  bool replay = true;
  /// For comparisons: a small holder may be what grew.
  bool every_holder = false;
  /// File names are replaced, in the same way in all files.
  std::optional<std::uint64_t> salt = {};
  /// Called kStagesOfAPart times for each file, from any thread.
  std::function<void()> progress = [] {};
};

/// Reading, explaining, packing and replaying.
inline constexpr std::size_t kStagesOfAPart = 3;

struct ReportPart {
  Explanation explanation;
  std::vector<PageRun> runs;
  std::vector<History> histories;
};

/// What the file at that place of the list is called where names are replaced.
std::string RedactedName(std::size_t number);

/// Reads the files on all cores; each is reduced to what is shown before the next is opened.
std::vector<Result<ReportPart>> ReadParts(const std::vector<std::string>& files,
                                          const PartOptions& options);

/// Each history with what is said of its device. Refers to the parts.
std::vector<ExportedRun> ExportedRuns(const std::vector<ReportPart>& parts);

}  // namespace plimsoll
