// Ranges that the program named: record_function, which a record keeps as external annotations.
#pragma once

#include <string>
#include <vector>

#include "timeline/timeline.h"

namespace plimsoll {

struct MarkRange {
  StringId name;
  TimeUs begin = 0;
  /// Of one that was not ended: kOpen.
  TimeUs end = 0;
  /// How many others it lies in.
  int depth = 0;

  static constexpr TimeUs kOpen = std::numeric_limits<TimeUs>::max();
  bool Covers(TimeUs time) const { return begin <= time && time < end; }
};

/// By their beginnings. One that began before the record begins with it.
std::vector<MarkRange> MarkRanges(const Timeline& timeline);

/// Whether PyTorch itself set it: around an optimizer's step, a collective, a layer of FSDP.
bool IsTorchMark(std::string_view name);

}  // namespace plimsoll
