// The allocator's settings: what PYTORCH_CUDA_ALLOC_CONF can say, read with the rules and the
// errors of the release that reads it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/settings/version.h"
#include "base/bytes.h"
#include "base/result.h"
#include "timeline/timeline.h"

namespace plimsoll {

inline constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
inline constexpr Bytes kLargeSegment = 20 * kMiB;
/// Sizes in settings end here, since no device has a pebibyte: so sums with them cannot overflow.
inline constexpr Bytes kLargestSetting = Bytes{1} << 50;

/// How many addresses an expandable segment reserves: a share of the device's memory, or GiB.
struct AddressReserve {
  bool is_share = true;
  double value = 1.125;

  friend bool operator==(const AddressReserve&, const AddressReserve&) = default;
};

/// Of the allocator of pinned host memory.
struct PinnedSettings {
  /// Larger requests get what they ask for, and no power of two.
  Bytes max_round_threshold = kUnlimited;
  /// Larger blocks are given back when they are free.
  Bytes max_cached_size = kUnlimited;
  /// Taken with the first request, and served from; 0 is none.
  Bytes reserve_segment_size = 0;

  friend bool operator==(const PinnedSettings&, const PinnedSettings&) = default;
};

/// The settings, complete. Defaults are PyTorch's.
struct AllocatorSettings {
  bool expandable_segments = false;
  /// Blocks of at least this size are never split.
  Bytes max_split_size = kUnlimited;
  /// What the driver is asked for when a request of 1 to 10 MiB finds no block.
  Bytes large_segment_size = kLargeSegment;
  /// How much larger than a request of at least max_split_size the block it takes may be. Unless
  /// set, large_segment_size.
  Bytes max_non_split_rounding = kLargeSegment;
  /// Share of the memory limit above which old cached blocks are given back; 0 is never.
  double garbage_collection_threshold = 0;
  /// One entry for each power of two from 1 MiB to 32 GiB; 0 and 1 are no rounding.
  std::array<std::int64_t, 16> roundup_power2_divisions{};
  /// The memory limit as a share of the device's memory.
  std::optional<double> per_process_memory_fraction = {};
  /// Gives up at that limit at once, without releasing the cache and trying again.
  bool throw_on_cudamalloc_oom = false;
  /// False: backend:cudaMallocAsync, which no model here covers.
  bool native = true;
  /// Blocks freed during a capture may be used again in it before the streams have met.
  bool graph_capture_record_stream_reuse = false;
  /// expandable_segments_reserve; never more than the default of 9/8 of the device takes effect.
  std::optional<AddressReserve> expandable_segments_reserve = {};
  PinnedSettings pinned = {};
  /// Keys that do not change placement (release_lock_on_cudamalloc) or only that of streams
  /// which the program tagged (expandable_segments_reserve_by_class), accepted as PyTorch does;
  /// each once.
  std::vector<std::string> ignored = {};

  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

/// Parses a PYTORCH_CUDA_ALLOC_CONF string with the rules and errors of that release.
Result<AllocatorSettings> ParseAllocatorSettings(std::string_view conf, TorchVersion version);

/// The shortest string that says the same; "" for the defaults. Ignored keys are left out. Every
/// release that knows its keys reads it alike.
std::string FormatSettings(const AllocatorSettings& settings);

/// From what a snapshot recorded: explicit fields win over the conf string. A string that this
/// release refuses is read as the newest would, since the record may come from a newer one.
AllocatorSettings SettingsFrom(const RecordedSettings& recorded, TorchVersion version);

}  // namespace plimsoll
