// Static packing ("dynamic storage allocation"): every buffer has a lifetime and a size that are
// known beforehand, and gets an offset, so that no two that are alive together overlap. The aim is
// the least height.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace plimsoll {

/// A point in time; what it counts (events, instructions) does not matter.
using Tick = std::int64_t;

struct Buffer {
  /// Alive in the half-open interval from lower to upper.
  Tick lower = 0;
  Tick upper = 0;
  Bytes size = 0;
  /// The offset must be a multiple of this.
  Bytes alignment = 1;
};

struct Problem {
  std::vector<Buffer> buffers;
};

struct Packing {
  /// One for each buffer, in the order of the problem.
  std::vector<Bytes> offsets;
  /// The largest offset + size.
  Bytes height = 0;
};

/// Why a problem cannot be packed at all: a lifetime that ends before it begins, a negative size,
/// an alignment below 1, or sizes that overflow when they are added up.
std::optional<Error> CheckProblem(const Problem& problem);

/// The next multiple of `alignment` from `offset` on.
inline Bytes AlignUp(Bytes offset, Bytes alignment) {
  const Bytes over = offset % alignment;
  return over == 0 ? offset : offset + (alignment - over);
}

}  // namespace plimsoll
