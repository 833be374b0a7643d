// What `plimsoll run` says of the processes that it recorded.
#pragma once

#include <string>
#include <vector>

#include "launch/processes.h"
#include "report/text.h"

namespace plimsoll {

/// A row for each process: how it ended, how often it ran out, its snapshot.
std::string ProcessTable(const std::vector<RecordedProcess>& processes, const TextStyle& style);

/// What recording took, and what of it is incomplete, a sentence each.
std::vector<std::string> RecordingCost(const std::vector<RecordedProcess>& processes);

}  // namespace plimsoll
