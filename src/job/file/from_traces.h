// A step from two recorded runs of the same job at two batch sizes: every allocation of the one is
// matched with its counterpart in the other, and its size becomes a function of the batch. What no
// capture sees, workspaces and temporaries, is in the records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/record/ledger.h"
#include "base/result.h"
#include "job/file/job.h"
#include "timeline/timeline.h"

namespace plimsoll {

struct RecordedRun {
  std::string file;
  const Timeline* timeline = nullptr;
  const Ledger* ledger = nullptr;
  std::int64_t batch = 0;
  /// By allocation, as far as known.
  std::vector<std::string> where;
  std::vector<Category> category;
};

/// The step does what `large` did, in its order.
Result<Job> JobFromTraces(const RecordedRun& small, const RecordedRun& large);

}  // namespace plimsoll
