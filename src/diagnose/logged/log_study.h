// What the memory that a log tells means: what grows, which rank is the odd one, how near the card
// is to full.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "timeline/recording.h"

namespace plimsoll {

struct LogStudy {
  LogReport report;
  std::vector<Finding> findings;
};

/// `capacity`: of the card, where an out-of-memory message tells it. Whoever has no rank gets the
/// one of the file's name.
LogStudy StudyLog(std::vector<LoggedSeries> series, std::optional<Bytes> capacity);

/// The answer of a log in which nothing ran out.
Explanation ExplainLog(const Recording& recording, std::optional<int> file_rank);
/// Puts what the log tells into the answer of its messages: what grew decides between a leak and a
/// job that is too large.
void AddLog(const Recording& recording, std::optional<int> file_rank, Explanation& explanation);

/// Of several logs one: the ranks of all are compared.
void JoinLogs(const std::vector<Explanation>& parts, Explanation& joined);

}  // namespace plimsoll
