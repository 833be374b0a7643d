// Sizes that are assumed, drawn anew: how unevenly tokens are spread over experts, and how large a
// convolution's workspace is to the block. The bytes of a step differ little, but blocks of other
// sizes suit the allocator's cache otherwise, and what stays reserved may differ by gigabytes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "job/file/job.h"

namespace plimsoll {

class DrawnSizes {
 public:
  /// `draw`: 0 for the sizes that are assumed; each other number is a draw of its own.
  DrawnSizes(const Job& job, const Variant& variant, int draw);

  /// Of a call's new storage, which has so many bytes as assumed.
  Bytes OfResult(const CallRecord& call, std::size_t fresh, int step, Bytes assumed) const;
  Bytes OfWorkspace(Bytes assumed) const;

 private:
  std::uint64_t Drawn(std::uint64_t what) const;

  const Job& job_;
  std::uint64_t draw_;
  /// What a mask or a choice selects: numbers of rows.
  std::vector<Number> selected_;
};

/// Whether any of it can be drawn. Where all steps are alike, the blocks of one suit the next.
bool HasDrawnSizes(const Job& job);

}  // namespace plimsoll
