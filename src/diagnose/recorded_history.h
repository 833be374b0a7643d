// A recorded run as a History, each block with its category and its line.
#pragma once

#include "timeline/history.h"
#include "timeline/timeline.h"

namespace plimsoll {

History RecordedHistory(const Timeline& timeline);

}  // namespace plimsoll
