// A step from recorded runs of the same job, two at two batch sizes or more at several points of
// batch and length: every allocation of the one is matched with its counterpart in the others, and
// its size becomes a function of the batch, or of both. What no capture sees, workspaces and
// temporaries, is in the records.
#pragma once

#include <span>

#include "base/result.h"
#include "job/file/job.h"
#include "job/file/matched_runs.h"

namespace plimsoll {

/// The step does what `large` did, in its order.
Result<Job> JobFromTraces(const RecordedRun& small, const RecordedRun& large);
/// Over batch and length, from three runs or more at points that differ. The step does what the
/// largest of them did.
Result<Job> JobFromTraces(std::span<const RecordedRun> runs);

}  // namespace plimsoll
