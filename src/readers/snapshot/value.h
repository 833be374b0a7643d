// What a pickle or a JSON document holds while it is read. A value is sixteen bytes whatever it
// stands for: containers are turned into rows of the builder's tables as soon as they are complete,
// so the object tree never exists.
#pragma once

#include <cstdint>

namespace plimsoll::snapshot {

enum class Kind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,    // payload: the bits of a double
  kString,   // payload: StringId
  kNewDict,  // a dict whose keys have not told its type yet; payload: memo index or kNoMemo
  kNewList,  // an empty list, likewise
  kEvent,    // the rest: payload is a row of the builder's table of that kind
  kEventList,
  kFrame,
  kStack,
  kBlock,
  kBlockList,
  kSegment,
  kSegmentList,
  kHistory,  // of a block, as PyTorch 1.13 and 2.0 wrote it
  kHostSegment,
  kHostSegmentList,
  kTraces,  // a list of lists of events, one for each device
  kAnnotation,
  kAnnotationList,
  kSettings,
  kDivisions,
  kPair,     // two integers: a pool id
  kStrings,  // a list of strings: forward_frames
  kSnapshot,
  kOpaque,  // something a memory snapshot does not need
};

inline constexpr std::uint64_t kNoMemo = (std::uint64_t{1} << 56) - 1;

struct Value {
  Kind kind = Kind::kNone;
  std::uint64_t payload = 0;

  static Value Int(std::int64_t v) { return {Kind::kInt, static_cast<std::uint64_t>(v)}; }
  std::int64_t AsInt() const { return static_cast<std::int64_t>(payload); }
};

}  // namespace plimsoll::snapshot
