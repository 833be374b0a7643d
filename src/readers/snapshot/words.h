// The words of a memory snapshot: what a string means where it stands as a key or as an action.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "files/read_budget.h"
#include "readers/snapshot/value.h"
#include "timeline/timeline.h"

namespace plimsoll::snapshot {

/// Every key that means something to us.
enum class Key : std::uint8_t {
  kUnknown,
  kAction,
  kAddr,
  kAddress,
  kSize,
  kStream,
  kTimeUs,
  kFrames,
  kForwardFrames,
  kDeviceFree,
  kUserMetadata,
  kCompileContext,
  kPoolId,
  kInternalMetadata,
  kName,
  kFilename,
  kLine,
  kFxOriginalTrace,
  kFxNodeOp,
  kFxNodeName,
  kFxNodeTarget,
  kCategory,
  kCategories,
  kAllocated,
  kTraceOverflowed,
  kTraceMaxEntries,
  kState,
  kRequestedSize,
  kHistory,
  kRealSize,
  kTotalSize,
  kSegmentType,
  kSegmentPoolId,
  kIsExpandable,
  kBlocks,
  kDevice,
  kRegistrationCounter,
  kSegments,
  kDeviceTraces,
  kAllocatorSettings,
  kExternalAnnotations,
  kHostSegments,
  kHostTraces,
  kStage,
  kConf,
  kMaxSplitSize,
  kMaxNonSplitRounding,
  kLargeSegmentSize,
  kGarbageCollectionThreshold,
  kExpandableSegments,
  kDivisions,
  kGraphCaptureReuse,
  kMaxCachedSize,
  kPrediction,  // of a predicted run: what was predicted
  kPredictedTorch,
  kPurpose,     // and of its events: what the block is for
  kBudget,      // what `plimsoll run --budget` set
  kOwner,       // the variable that kept a block, which `plimsoll run` adds
  kDivisionOf,  // "1", "2", "4", … "32768" inside roundup_power2_divisions
};
inline constexpr std::size_t kKeyCount = static_cast<std::size_t>(Key::kDivisionOf) + 1;

/// The bucket that a key of roundup_power2_divisions names ("1" to "32768" MiB), or -1.
int DivisionBucket(std::string_view text);

/// Every distinct string of a document, with what it means. That is looked up once for each, since
/// a file names the same few keys a million times.
class Words {
 public:
  Words(StringTable& strings, ReadBudget& budget) : strings_(strings), budget_(budget) {}

  StringId Add(std::string_view text);
  Key KeyOf(Value v) const {
    return v.kind == Kind::kString ? key_of_string_[v.payload] : Key::kUnknown;
  }
  Action ActionOf(Value v) const {
    return v.kind == Kind::kString ? action_of_string_[v.payload] : Action::kOther;
  }
  /// Only of a string.
  std::string_view TextOf(Value v) const { return strings_[StringId(v.payload)]; }

 private:
  StringTable& strings_;
  ReadBudget& budget_;
  std::vector<Key> key_of_string_;        // by StringId
  std::vector<Action> action_of_string_;  // by StringId
};

}  // namespace plimsoll::snapshot
