#include "allocator/settings/settings.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {
namespace {

constexpr std::size_t kBuckets =
    std::tuple_size_v<decltype(AllocatorSettings{}.roundup_power2_divisions)>;

std::string BucketText(std::size_t bucket, std::int64_t divisions) {
  return fmt::format("{}:{}", std::uint64_t{1} << bucket, divisions);
}

/// One value for all, or a list. In the list ">" follows only a size of the same value: so it does
/// not matter whether a release lets it begin at the last size or after it.
std::string DivisionsText(const std::array<std::int64_t, kBuckets>& divisions) {
  const auto differs = [&](std::size_t from) {
    return [&, from](std::int64_t d) { return d != divisions[from]; };
  };
  const auto head_end = std::find_if(divisions.begin(), divisions.end(), differs(0));
  const auto head = static_cast<std::size_t>(head_end - divisions.begin());
  if (head == kBuckets) return divisions[0] == 0 ? "" : std::to_string(divisions[0]);
  const auto tail_end = std::find_if(divisions.rbegin(), divisions.rend(), differs(kBuckets - 1));
  const auto tail = static_cast<std::size_t>(divisions.rend() - tail_end);
  // The first size stands for all below it.
  std::string text = "[" + BucketText(head - 1, divisions[0]);
  for (std::size_t i = head; i < tail; ++i) text += "," + BucketText(i, divisions[i]);
  if (divisions[tail] != 0) {
    text += "," + BucketText(tail, divisions[tail]);
    if (tail + 1 < kBuckets) text += fmt::format(",>:{}", divisions[tail]);
  }
  return text + "]";
}

std::string ReserveText(const AddressReserve& reserve) {
  return fmt::format("{}{}", reserve.value, reserve.is_share ? "" : "G");
}

}  // namespace

std::string FormatSettings(const AllocatorSettings& s) {
  std::string text;
  const auto add = [&](std::string_view key, const std::string& value) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}:{}", key, value);
  };
  const auto mib = [](Bytes size) { return std::to_string(size / kMiB); };
  if (!s.native) add("backend", "cudaMallocAsync");
  if (s.expandable_segments) add("expandable_segments", "True");
  if (s.max_split_size < kLargestSetting) add("max_split_size_mb", mib(s.max_split_size));
  if (s.large_segment_size != kLargeSegment) {
    add("large_segment_size_mb", mib(s.large_segment_size));
  }
  if (s.max_non_split_rounding != s.large_segment_size) {
    add("max_non_split_rounding_mb", mib(s.max_non_split_rounding));
  }
  if (s.garbage_collection_threshold > 0) {
    add("garbage_collection_threshold", fmt::format("{}", s.garbage_collection_threshold));
  }
  const std::string divisions = DivisionsText(s.roundup_power2_divisions);
  if (!divisions.empty()) add("roundup_power2_divisions", divisions);
  if (s.per_process_memory_fraction) {
    add("per_process_memory_fraction", fmt::format("{}", *s.per_process_memory_fraction));
  }
  if (s.throw_on_cudamalloc_oom) add("throw_on_cudamalloc_oom", "True");
  if (s.graph_capture_record_stream_reuse) add("graph_capture_record_stream_reuse", "True");
  if (s.expandable_segments_reserve) {
    add("expandable_segments_reserve", ReserveText(*s.expandable_segments_reserve));
  }
  const PinnedSettings& pinned = s.pinned;
  if (pinned.max_round_threshold < kLargestSetting) {
    add("pinned_max_round_threshold_mb", mib(pinned.max_round_threshold));
  }
  if (pinned.max_cached_size < kLargestSetting) {
    add("pinned_max_cached_size_mb", mib(pinned.max_cached_size));
  }
  if (pinned.reserve_segment_size > 0) {
    add("pinned_reserve_segment_size_mb", mib(pinned.reserve_segment_size));
  }
  return text;
}

AllocatorSettings SettingsFrom(const RecordedSettings& recorded, TorchVersion version) {
  AllocatorSettings settings;
  for (const TorchVersion reader : {version, NewestKnown()}) {
    Result<AllocatorSettings> parsed = ParseAllocatorSettings(recorded.conf, reader);
    if (!parsed) continue;
    settings = *std::move(parsed);
    break;
  }
  if (recorded.expandable_segments) settings.expandable_segments = *recorded.expandable_segments;
  if (recorded.max_split_size) {
    // A record writes -1 where there is no limit.
    const bool limited = *recorded.max_split_size > 0;
    settings.max_split_size = limited ? *recorded.max_split_size : kUnlimited;
  }
  // What PyTorch would have refused was never in force, whatever a record says.
  if (recorded.large_segment_size.value_or(0) > 10 * kMiB) {
    settings.large_segment_size = std::min(*recorded.large_segment_size, kLargestSetting);
    settings.max_non_split_rounding = settings.large_segment_size;
  }
  if (recorded.max_non_split_rounding.value_or(0) > 0) {
    settings.max_non_split_rounding = std::min(*recorded.max_non_split_rounding, kLargestSetting);
  }
  if (const double share = recorded.garbage_collection_threshold.value_or(-1);
      share >= 0 && share < 1) {
    settings.garbage_collection_threshold = share;
  }
  // Records that state any of these fields state the divisions too; a bare string may come alone.
  const bool stated = recorded.max_split_size || recorded.expandable_segments;
  const auto& divisions = recorded.roundup_power2_divisions;
  const bool any = std::any_of(divisions.begin(), divisions.end(), [](auto d) { return d != 0; });
  if (stated || any) settings.roundup_power2_divisions = divisions;
  return settings;
}

}  // namespace plimsoll
