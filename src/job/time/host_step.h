// An optimizer's step on the host.
#pragma once

namespace plimsoll {

/// Bytes a microsecond that it goes through. Assumed, not measured: two channels of DDR5 give some
/// 60 GB/s, a server's socket twice that and more, and one pass of a fused kernel over all cores
/// gets most of it.
inline constexpr double kHostMemoryRate = 50e3;

}  // namespace plimsoll
