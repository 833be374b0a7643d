#include "readers/snapshot/words.h"

#include <bit>
#include <charconv>

#include "base/hash.h"
#include "timeline/predicted_run.h"

namespace plimsoll::snapshot {
namespace {

const HashMap<std::string_view, Key>& SnapshotKeys() {
  static const HashMap<std::string_view, Key> keys = {
      {"action", Key::kAction},
      {"addr", Key::kAddr},
      {"address", Key::kAddress},
      {"size", Key::kSize},
      {"stream", Key::kStream},
      {"time_us", Key::kTimeUs},
      {"frames", Key::kFrames},
      {"forward_frames", Key::kForwardFrames},
      {"device_free", Key::kDeviceFree},
      {"user_metadata", Key::kUserMetadata},
      {"compile_context", Key::kCompileContext},
      {"pool_id", Key::kPoolId},
      {"internal_metadata", Key::kInternalMetadata},
      {"name", Key::kName},
      {"filename", Key::kFilename},
      {"line", Key::kLine},
      {"fx_original_trace", Key::kFxOriginalTrace},
      {"fx_node_op", Key::kFxNodeOp},
      {"fx_node_name", Key::kFxNodeName},
      {"fx_node_target", Key::kFxNodeTarget},
      {"category", Key::kCategory},
      {"categories", Key::kCategories},
      {"allocated", Key::kAllocated},
      {"trace_alloc_overflowed", Key::kTraceOverflowed},
      {"trace_alloc_max_entries", Key::kTraceMaxEntries},
      {"state", Key::kState},
      {"requested_size", Key::kRequestedSize},
      {"history", Key::kHistory},
      {"real_size", Key::kRealSize},
      {"total_size", Key::kTotalSize},
      {"segment_type", Key::kSegmentType},
      {"segment_pool_id", Key::kSegmentPoolId},
      {"is_expandable", Key::kIsExpandable},
      {"blocks", Key::kBlocks},
      {"device", Key::kDevice},
      {"registration_counter", Key::kRegistrationCounter},
      {"segments", Key::kSegments},
      {"device_traces", Key::kDeviceTraces},
      {"allocator_settings", Key::kAllocatorSettings},
      {"external_annotations", Key::kExternalAnnotations},
      {"host_segments", Key::kHostSegments},
      {"host_traces", Key::kHostTraces},
      {"stage", Key::kStage},
      {"PYTORCH_CUDA_ALLOC_CONF", Key::kConf},
      {"PYTORCH_ALLOC_CONF", Key::kConf},
      {"max_split_size", Key::kMaxSplitSize},
      {"max_non_split_rounding_size", Key::kMaxNonSplitRounding},
      {"large_segment_size", Key::kLargeSegmentSize},
      {"garbage_collection_threshold", Key::kGarbageCollectionThreshold},
      {"expandable_segments", Key::kExpandableSegments},
      {"roundup_power2_divisions", Key::kDivisions},
      {"graph_capture_record_stream_reuse", Key::kGraphCaptureReuse},
      {"max_cached_size", Key::kMaxCachedSize},
      {"plimsoll_budget", Key::kBudget},
      {"plimsoll_owner", Key::kOwner},
      {kPredictionKey, Key::kPrediction},
      {kPredictedTorchKey, Key::kPredictedTorch},
      {kPredictedCategoryKey, Key::kPurpose},
  };
  return keys;
}

Key KeyNamed(std::string_view name) {
  const auto known = SnapshotKeys().find(name);
  if (known != SnapshotKeys().end()) return known->second;
  return DivisionBucket(name) >= 0 ? Key::kDivisionOf : Key::kUnknown;
}

Action ActionNamed(std::string_view name) {
  if (name == "alloc") return Action::kAlloc;
  if (name == "free_requested") return Action::kFreeRequested;
  if (name == "free_completed") return Action::kFreeCompleted;
  if (name == "segment_alloc") return Action::kSegmentAlloc;
  if (name == "segment_free") return Action::kSegmentFree;
  if (name == "segment_map") return Action::kSegmentMap;
  if (name == "segment_unmap") return Action::kSegmentUnmap;
  if (name == "oom") return Action::kOutOfMemory;
  if (name == "snapshot") return Action::kSnapshot;
  if (name == "annotate") return Action::kAnnotate;
  return Action::kOther;
}

}  // namespace

int DivisionBucket(std::string_view text) {
  std::uint32_t mib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mib);
  if (error != std::errc() || end != text.data() + text.size()) return -1;
  if (!std::has_single_bit(mib) || mib > 32768) return -1;
  return std::countr_zero(mib);
}

StringId Words::Add(std::string_view text) {
  const StringId id = strings_.Intern(text);
  if (id.index() >= key_of_string_.size()) {
    // The text, and what a string and its entry in the index take.
    budget_.Take(text.size() + 112);
    // The stack builder interns names of its own (cut ones), which are no keys.
    key_of_string_.resize(id.index(), Key::kUnknown);
    action_of_string_.resize(id.index(), Action::kOther);
    key_of_string_.push_back(KeyNamed(text));
    action_of_string_.push_back(ActionNamed(text));
  }
  return id;
}

}  // namespace plimsoll::snapshot
