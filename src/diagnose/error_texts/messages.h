// Explains out-of-memory messages and memory summaries, where there is no trace.
#pragma once

#include <optional>

#include "answer/explanation.h"
#include "timeline/recording.h"

namespace plimsoll {

/// From the figures of the messages alone: what each means, the arithmetic, which causes they rule
/// in and out, and what to record next. One rank entry for each rank or device that is named.
/// `file_rank` is the rank that the file's name tells, for messages that name none.
Explanation ExplainMessages(const Recording& recording, std::optional<int> file_rank = {});

/// The same for torch.cuda.memory_summary().
Explanation ExplainSummaries(const Recording& recording);

/// The same for torch.profiler's memory timeline with its categories.
Explanation ExplainCategories(const Recording& recording);

}  // namespace plimsoll
