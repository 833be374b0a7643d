// The search for the allocator's settings that suit a job: every candidate is replayed.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "allocator/replay/replay.h"
#include "allocator/replay/verify.h"

namespace plimsoll {

struct TuneOptions {
  DeviceLimits limits;
  VersionRules version;
  /// Try CommonSettings() alone.
  bool common_only = false;
  /// Called after each candidate, from any thread.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

struct TuneRow {
  AllocatorSettings settings;
  ReplayResult replayed;
  /// What the independent checker found wrong; nothing for every run seen.
  std::optional<std::string> fault = {};

  std::int64_t DriverCalls() const {
    return replayed.counters.driver_allocations + replayed.counters.driver_frees;
  }
};

struct TuneResult {
  /// The recorded settings first, then the others: those that fit by reserved memory, those that do
  /// not by how far they came.
  std::vector<TuneRow> rows;
  /// Index into rows.
  std::size_t best = 0;
  /// Index of the simplest that is at most 1 % worse than the best.
  std::size_t simplest = 0;
  /// Index of PyTorch's defaults.
  std::size_t defaults = 0;
};

/// The settings that are tried: what the release knows, and what can matter under these limits.
std::vector<AllocatorSettings> TuneCandidates(const AllocatorSettings& recorded,
                                              const VersionRules& version, bool limited);

/// The few that forums and error messages advise, the recorded ones first: an overview in little
/// time.
std::vector<AllocatorSettings> CommonSettings(const AllocatorSettings& recorded, bool limited);

TuneResult Tune(const Timeline& timeline, const Verification& verified, const TuneOptions& options);

}  // namespace plimsoll
