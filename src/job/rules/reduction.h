// What a sum, a mean or a norm takes besides its result: when many blocks of threads work on one
// output, each leaves its part in a staging buffer and counts itself off at a semaphore.
#pragma once

#include <cstdint>
#include <span>

#include "job/calls/emitter.h"

namespace plimsoll {

struct ReductionTemps {
  Bytes staging = 0;
  Bytes semaphores = 0;
};

/// How a kind of reduction adds up.
struct Accumulator {
  /// Of one running value.
  Bytes bytes = 4;
  /// It reads four inputs at once where it can; Welford's (variance) does not.
  bool vectorised = true;
};

/// Of a reduction over `dims` (negative ones count from the end; none means all).
ReductionTemps ReductionTemporaries(const Layout& input, std::span<const std::int64_t> dims,
                                    const Accumulator& accumulator, const Gpu& gpu);

/// Takes both and gives them back, the last first.
void Reduce(Emitter& emit, const Layout& input, std::span<const std::int64_t> dims,
            const Accumulator& accumulator = {});

}  // namespace plimsoll
