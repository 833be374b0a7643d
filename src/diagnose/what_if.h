// What if: a recorded job put to the allocator again. The flow behind `replay` and `tune`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/replay/fragmentation.h"
#include "allocator/replay/replay.h"
#include "allocator/replay/tune.h"
#include "allocator/replay/verify.h"
#include "base/result.h"
#include "diagnose/attribution/analysed_trace.h"
#include "timeline/recording.h"

namespace plimsoll {

struct WhatIfOptions {
  /// The device to look at; unless given, of those that can be replayed the one with most events.
  std::optional<int> device = {};
  /// A PYTORCH_CUDA_ALLOC_CONF string; the recorded settings unless given.
  std::optional<std::string> conf = {};
  std::optional<Bytes> capacity = {};
  std::optional<Bytes> limit = {};
  std::optional<TorchVersion> torch = {};
  /// What stands behind these options and is no figure of the record, in sentences.
  std::vector<std::string> assumed = {};
  /// The release is that of the record, not another to try.
  bool verify = false;
  /// Empty the cache after every so many steps; 0 is never.
  int empty_cache_every = 0;
  /// Of `tune`: only the settings that are often advised, for an overview.
  bool common_only = false;
};

/// A recorded job, ready to be replayed. Keeps what the replays refer to.
struct ReplayableJob {
  std::string file;
  const AnalysedTrace* trace = nullptr;
  /// Under given limits; nothing where the record's own hold.
  std::unique_ptr<const Verification> under_given_limits = nullptr;
  /// The given limits decide how the job is replayed; what was inferred holds where none are given.
  DeviceLimits limits = {};

  const Verification& verified() const {
    return under_given_limits ? *under_given_limits : trace->verified();
  }
};

/// The trace of the device that is asked about, checked: the model decides as the record did. What
/// is given must outlive the job.
Result<ReplayableJob> PrepareJob(const AnalysedRecording& analysed, const WhatIfOptions& options);
/// The same of one of its traces, whatever device the options name.
Result<ReplayableJob> PrepareJob(const Recording& recording, const AnalysedTrace& trace,
                                 const WhatIfOptions& options);

/// A block that keeps a segment from being used or given back.
struct PinnedReport {
  Pinned pinned;
  /// The longest-lived block: when it was made, how large it is, from which line.
  std::optional<std::int64_t> made = {};
  std::optional<std::int64_t> released = {};
  Bytes requested = 0;
  std::string where = {};
};

struct ReplayReport {
  std::string file;
  int device = 0;
  std::int64_t events = 0;
  TorchVersion torch;
  TorchVersion recorded_torch;
  int empty_cache_every = 0;
  std::string settings;
  std::string recorded_settings;
  Bytes recorded_peak_reserved = 0;
  Bytes recorded_final_reserved = 0;
  std::int64_t recorded_driver_calls = 0;
  DeviceLimits limits;

  ReplayResult replayed;
  /// What the independent checker found; nothing is the rule.
  std::optional<std::string> fault = {};
  /// As in TuneReport.
  bool complete = true;
  /// At the peak of reserved memory, or where the job runs out.
  Fragmentation fragmentation;
  std::int64_t fragmentation_event = 0;
  std::vector<PinnedReport> pinned;
  /// The line that asked for what could not be had.
  std::string oom_where = {};

  /// The most bytes alive at once; no allocator can do with less.
  Bytes lower_bound = 0;
  /// What packing all of it with foresight needs, and whether that is proven to be the least.
  Bytes packed = 0;
  bool packed_is_least = false;
  std::optional<Bytes> smallest_capacity = {};

  std::int64_t allocations = 0;
  std::int64_t address_mismatches = 0;
  std::int64_t segment_events = 0;
  std::int64_t segment_mismatches = 0;
  std::int64_t refusal_mismatches = 0;
  std::int64_t final_block_differences = 0;
  std::optional<Mismatch> first_mismatch = {};
  std::vector<std::string> assumed = {};
  std::vector<std::string> inferred = {};
  /// What the answer does not cover.
  std::vector<std::string> caveats = {};
};

Result<ReplayReport> ReplayJob(const ReplayableJob& job, const WhatIfOptions& options);

struct TuneReport {
  std::string file;
  int device = 0;
  /// Whether the record holds a whole step, or ended well: else a setting only gets past a request.
  bool complete = true;
  TorchVersion torch;
  DeviceLimits limits;
  Bytes recorded_peak_reserved = 0;
  Bytes lower_bound = 0;
  TuneResult result;
  std::vector<std::string> assumed = {};
  std::vector<std::string> inferred = {};
  std::vector<std::string> caveats = {};
};

TuneReport TuneJob(const ReplayableJob& job, const WhatIfOptions& options,
                   const std::function<void(std::size_t done, std::size_t total)>& progress);

}  // namespace plimsoll
