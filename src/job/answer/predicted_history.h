// A predicted run as a History: the same that recorded runs come to, so that one page shows both.
#pragma once

#include "job/trial/trial.h"
#include "timeline/history.h"

namespace plimsoll {

/// The run that the trial shows. Its events are the requests to the allocator, without times; its
/// categories are the purposes.
History PredictedHistory(const Trial& trial);

}  // namespace plimsoll
