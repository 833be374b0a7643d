// What a host record says: who was killed and why, what grew, and what to change.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "answer/host.h"
#include "timeline/host_record.h"
#include "timeline/message.h"

namespace plimsoll {

/// What a log, or an exception, says of a process that ended.
struct ReportedEnd {
  HostEvent event = HostEvent::kNone;
  std::optional<std::int64_t> pid = {};
};

/// From the messages of one text: those about the host's memory.
std::vector<ReportedEnd> ReportedEnds(const std::vector<OomMessage>& messages);

struct HostStudy {
  HostReport report;
  /// Nothing where nobody was killed.
  std::vector<Finding> findings;
  /// Why the job ended, in sentences; else how much of the host's memory it took.
  std::string verdict;
};

HostStudy StudyHost(const HostRecord& record, const std::vector<ReportedEnd>& reported = {});

/// One line: the most that the job's processes held together.
std::string HostPeakText(const HostReport& report);

/// Puts it into the answer of the other files, or makes one of it alone. Where somebody was killed
/// and no rank ran out of the device's memory, the verdict begins with that.
void AddHost(HostStudy study, Explanation& explanation);

}  // namespace plimsoll
