// Puts a job's requests to the allocator again: under other settings, on another device, in another
// release.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/model/caching_allocator.h"
#include "allocator/replay/workload.h"

namespace plimsoll {

struct ReplayOptions {
  AllocatorRules rules;
  DeviceLimits limits;
  /// The segments from before the record are kept as they were; otherwise (other settings) what was
  /// alive in them is asked for anew.
  bool keep_earlier_segments = true;
  /// Requests that the record refused are asked again (the one that ended it always is).
  bool ask_refused = true;
  /// The cache is emptied before each of these events, in order.
  std::vector<EventIndex> empty_cache_before = {};
};

/// What the allocator did, for the checker: every block and every piece of memory as it comes and
/// goes.
struct ReplayLog {
  enum class What : std::uint8_t { kBlock, kBlockGone, kMemory, kMemoryGone };
  struct Entry {
    Address address = 0;
    Bytes size = 0;
    What what = What::kBlock;
  };
  std::vector<Entry> entries;
};

struct ReplayResult {
  AllocatorCounters counters;
  /// Every request that the record served is served, and the one that ended it too.
  bool fits = true;
  /// The event at which the job runs out; the replay ends there.
  std::optional<EventIndex> oom_event = {};
  Bytes oom_requested = 0;
  /// The request that made reserved memory what it was at its peak; an index into the requests.
  std::size_t peak_request = 0;
  /// Refused in the record and served here. What the job would have done with them is unknown; each
  /// is taken as given back at once.
  std::int64_t refusals_served = 0;
  /// Borrowings that were refused.
  std::int64_t done_without = 0;
};

/// One run, which can be stopped and looked at.
class Replayer {
 public:
  Replayer(const Workload& workload, const ReplayOptions& options, Driver& driver,
           ReplayLog* log = nullptr);

  /// Runs up to and with request `last`, or to the end, each once.
  void Run(std::size_t last = static_cast<std::size_t>(-1));
  /// Runs one request and tells which; nothing at the end. What is repeated is run again, until it
  /// leaves the allocator as it was before: from then on it goes round in a circle.
  std::optional<std::size_t> Next();

  ReplayResult result() const;
  /// Borrowings that were refused in what was run.
  std::int64_t done_without() const { return result_.done_without; }
  /// It ran out.
  bool stopped() const { return stopped_; }
  const CachingAllocator& allocator() const { return allocator_; }
  /// The allocation that each block serves, by block.
  std::vector<std::uint32_t> Owners() const;

 private:
  using BlockId = CachingAllocator::BlockId;

  /// As requests that are repeated begin.
  struct Round {
    /// A hash of all that decides what comes of them.
    std::uint64_t state = 0;
    std::int64_t done_without = 0;
  };

  void Begin();
  Round RoundAt(const RepeatedRequests& repeated, std::uint32_t shift) const;
  void EndRound(const RepeatedRequests& repeated);
  void LeaveOutCircles(const Round& now);
  void Step(std::size_t index);
  void Serve(const Request& request, std::size_t index);
  void Fail(const Request& request);
  void LogCalls();
  void LogFree(BlockId block);

  const Workload& workload_;
  const ReplayOptions options_;
  CachingAllocator allocator_;
  ReplayLog* log_;
  Holdings holdings_;
  std::size_t next_ = 0;
  std::size_t next_empty_ = 0;
  /// Of the requests that are repeated, those that come next or are being run; and of these the
  /// rounds that were begun, and how many are left.
  std::size_t next_repeat_ = 0;
  std::vector<Round> rounds_;
  std::int64_t rounds_left_ = 0;
  /// In rounds that were not run.
  std::int64_t further_without_ = 0;
  bool stopped_ = false;
  ReplayResult result_;
};

/// A whole run, with the addresses of an AssumedDriver; checked if `log` is given.
ReplayResult Replay(const Timeline& timeline, const Workload& workload,
                    const ReplayOptions& options, ReplayLog* log = nullptr);

/// Whether the segments from before the record can be kept: not where they exceed the limits.
bool KeepsEarlier(const Workload& workload, const ReplayOptions& options);

/// The smallest capacity at which the job still fits: a multiple of 2 MiB, found by bisection.
/// Nothing if it does not fit at any.
std::optional<Bytes> SmallestCapacity(const Timeline& timeline, const Workload& workload,
                                      ReplayOptions options);

}  // namespace plimsoll
