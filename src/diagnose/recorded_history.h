// A recorded run as a History, each block with its category and its line.
#pragma once

#include "diagnose/attribution/analysed_trace.h"
#include "timeline/history.h"
#include "timeline/timeline.h"

namespace plimsoll {

History RecordedHistory(const AnalysedTrace& trace);

}  // namespace plimsoll
