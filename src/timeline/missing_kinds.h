// Kinds of events that a record lacks although they must have happened. PyTorch can be told to
// leave kinds out (skip_actions of _record_memory_history, 2.11 and newer), and nothing in the file
// says so.
#pragma once

#include "timeline/timeline.h"

namespace plimsoll {

struct MissingKinds {
  bool allocs = false;
  bool releases = false;     // free_requested
  bool completions = false;  // free_completed
  bool segments = false;     // of every kind

  bool any() const { return allocs || releases || completions || segments; }
  /// What was released cannot be told at all.
  bool frees() const { return releases && completions; }
};

/// Only what the record itself proves: an address that is given out twice, a free of what was never
/// made. A kind of which there simply were none is not missing.
MissingKinds FindMissingKinds(const Timeline& timeline);

}  // namespace plimsoll
