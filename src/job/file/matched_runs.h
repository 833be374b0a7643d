// Recorded runs of the same job beside each other: which allocation of the one is which of the
// other; and a step that does what one of them did, with sizes that are given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
  /// Where lengths are told apart.
  std::int64_t length = 0;
  /// By allocation, as far as known.
  std::vector<std::string> where;
  std::vector<Category> category;
};

/// An allocation in the order of the record, and a hash of the stack that made it.
struct Made {
  std::uint32_t allocation = 0;
  std::size_t stack = 0;
  Bytes size = 0;
};
std::vector<Made> InOrder(const RecordedRun& run);

/// How many times as large a counterpart can be.
struct SizeRatio {
  double least = 1;
  double most = 1;

  bool Allows(Bytes small, Bytes large) const;
};

/// For each allocation of a run, in its order, that of another run.
using Counterparts = std::vector<std::optional<std::uint32_t>>;
/// How many have none.
std::ptrdiff_t Missing(const Counterparts& counterparts);

/// Those of `large`, whose allocations are `made`, in `other`; of any size where no ratio is given.
/// An error with `hint` where they are not the same job.
Result<Counterparts> Compare(const RecordedRun& other, const RecordedRun& large,
                             const std::vector<Made>& made, const std::optional<SizeRatio>& ratio,
                             std::string_view hint);

/// A step that does what a run did. `bytes`: of each allocation in the order of the record.
Job FollowRun(const RecordedRun& run, const std::vector<Number>& bytes);
/// Whether a job was made so.
bool IsRecorded(const Job& job);

}  // namespace plimsoll
