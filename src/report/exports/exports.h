// A run for other programs: ui.perfetto.dev, speedscope, spreadsheets. docs/formats/exports.md
// describes what they get.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"
#include "timeline/history.h"

namespace plimsoll {

struct ExportedRun {
  const History* history = nullptr;
  /// What `explain` says of it: the file, the rank, where it ran out of memory, its limit. May be
  /// null.
  const RankReport* rank = nullptr;
};

/// Trace events as Chrome and Perfetto read them, a process a run: counters, steps, the largest
/// blocks.
std::string PerfettoJson(const std::vector<ExportedRun>& runs);

/// The stacks whose blocks are alive right after event `at`, by bytes, as speedscope reads them.
std::string SpeedscopeJson(const ExportedRun& run, Position at);

/// A line for each block that begins or ends, with what is held afterwards.
std::string HistoryCsv(const ExportedRun& run);

}  // namespace plimsoll
