#include "dump.h"

#include <cstdint>
#include <string>

#include "context.h"
#include "release.h"

namespace {

using nlohmann::json;

std::uint64_t Number(const void* handle) { return reinterpret_cast<std::uint64_t>(handle); }

json Place(const std::shared_ptr<c10::GatheredContext>& context) {
  const auto* call = dynamic_cast<const CallContext*>(context.get());
  return call == nullptr ? json(nullptr) : json(call->name);
}

json Pool(const release::PoolId& pool) { return {pool.first, pool.second}; }

const char* ActionName(release::native::TraceEntry::Action action) {
  static constexpr const char* kNames[] = {
      "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap",  "snapshot",       "oom",           "annotate"};
  return kNames[static_cast<int>(action)];
}

json DumpSegment(const release::native::SegmentInfo& segment) {
  json blocks = json::array();
  std::uint64_t address = segment.address;
  for (const auto& block : segment.blocks) {
    blocks.push_back({
        {"address", address},
        {"size", block.size},
        {"requested_size", block.requested_size},
        {"state", block.allocated ? "active_allocated"
                  : block.active  ? "active_pending_free"
                                  : "inactive"},
        {"place", Place(block.context_when_allocated)},
    });
    address += block.size;
  }
  json result = {
      {"device", segment.device},
      {"address", segment.address},
      {"total_size", segment.total_size},
      {"allocated_size", segment.allocated_size},
      {"active_size", segment.active_size},
      {"requested_size", segment.requested_size},
      {"stream", Number(segment.stream)},
      {"segment_type", segment.is_large ? "large" : "small"},
      {"segment_pool_id", Pool(segment.owner_private_pool_id)},
      {"is_expandable", segment.is_expandable},
      {"place", Place(segment.context_when_allocated)},
      {"blocks", std::move(blocks)},
  };
#if TORCH_MINOR >= 11
  result["registration_counter"] = segment.registration_counter;
#endif
  return result;
}

json DumpEntry(const release::native::TraceEntry& entry) {
  json result = {ActionName(entry.action_), entry.addr_,    entry.size_,
                 Number(entry.stream_),     entry.time_.t_, Place(entry.context_)};
#if TORCH_MINOR >= 8
  result.push_back(Pool(entry.mempool_));
  result.push_back(entry.compile_context_);
#endif
#if TORCH_MINOR >= 10
  result.push_back(entry.user_metadata_);
#endif
#if TORCH_MINOR >= 15
  result.push_back(entry.internal_metadata_);
#endif
  return result;
}

json DumpSettings(const release::native::AllocatorConfigInfo& info) {
  json result = {
      {"PYTORCH_CUDA_ALLOC_CONF", info.last_allocator_settings},
      {"max_split_size", static_cast<std::int64_t>(info.max_split_size)},
      {"garbage_collection_threshold", info.garbage_collection_threshold},
      {"expandable_segments", info.expandable_segments},
      {"pinned_num_register_threads", info.pinned_num_register_threads},
      {"release_lock_on_cudamalloc", info.release_lock_on_malloc},
      {"pinned_use_cuda_host_register", info.pinned_use_host_register},
  };
#if TORCH_MINOR >= 9
  result["graph_capture_record_stream_reuse"] = info.graph_capture_record_stream_reuse;
#endif
#if TORCH_MINOR >= 13
  result["max_round_threshold"] = static_cast<std::int64_t>(info.max_round_threshold);
  result["max_cached_size"] = static_cast<std::int64_t>(info.max_cached_size);
#endif
  std::uint64_t bucket = 1;
  for (const std::size_t divisions : info.roundup_power2_divisions) {
    result["roundup_power2_divisions"][std::to_string(bucket)] = divisions;
    bucket *= 2;
  }
  return result;
}

template <typename Stat>
void AddStat(json& stats, const std::string& name, const Stat& stat) {
  stats[name + ".current"] = stat.current;
  stats[name + ".peak"] = stat.peak;
  stats[name + ".allocated"] = stat.allocated;
  stats[name + ".freed"] = stat.freed;
}

template <typename Stats>
void AddStats(json& stats, const std::string& name, const Stats& by_pool) {
  AddStat(stats, name + ".all", by_pool[0]);
  AddStat(stats, name + ".small_pool", by_pool[1]);
  AddStat(stats, name + ".large_pool", by_pool[2]);
}

}  // namespace

json DumpSnapshot() {
  const auto snapshot = release::native::snapshot();
  json segments = json::array();
  for (const auto& segment : snapshot.segments) segments.push_back(DumpSegment(segment));
  json trace = json::array();
  for (const auto& entry : snapshot.device_traces.at(0)) trace.push_back(DumpEntry(entry));
  return {{"segments", std::move(segments)},
          {"trace", std::move(trace)},
          {"settings", DumpSettings(snapshot.config_metadata)}};
}

json DumpStats() {
  const auto stats = release::native::getDeviceStats(0);
  json result;
  AddStats(result, "allocation", stats.allocation);
  AddStats(result, "segment", stats.segment);
  AddStats(result, "active", stats.active);
  AddStats(result, "inactive_split", stats.inactive_split);
  AddStats(result, "allocated_bytes", stats.allocated_bytes);
  AddStats(result, "reserved_bytes", stats.reserved_bytes);
  AddStats(result, "active_bytes", stats.active_bytes);
  AddStats(result, "inactive_split_bytes", stats.inactive_split_bytes);
  AddStats(result, "requested_bytes", stats.requested_bytes);
  AddStat(result, "oversize_allocations", stats.oversize_allocations);
  AddStat(result, "oversize_segments", stats.oversize_segments);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = stats.max_split_size;
#if TORCH_MINOR >= 12
  result["num_oom_rejections"] = stats.num_oom_rejections;
#endif
  return result;
}
