// The gate between the readers and everything else.
#pragma once

#include "timeline/recording.h"

namespace plimsoll {

/// Takes out what no device can have: events, segments and blocks whose range is none (limits.h).
/// An event stays as one of an unknown kind, so that indices stay true. Times are kept within
/// bounds. Everything is counted in Recording::skipped.
void TakeOutImpossible(Recording& recording);

}  // namespace plimsoll
