// The rules by kind of convolution. Each says the likely workspace of a call; each threshold is
// where the measured calls change from one engine to another, not something cuDNN documents. They
// were written by hand; lab/fit_convolution_engines fits trees over the same formulas to the same
// rows, which are no better on rows that they have not seen.
#pragma once

#include "base/bytes.h"
#include "job/cudnn/convolution_call.h"

namespace plimsoll::convolution {

Bytes LikelyDepthwise(const Call& s);
Bytes LikelyGrouped(const Call& s);
Bytes LikelyPointwise(const Call& s);
Bytes LikelyFewChannels(const Call& s);
/// k×k, at least 8 channels on both sides: forward and backward_data.
Bytes LikelyOrdinary(const Call& s);
/// The same for the gradient of the weight.
Bytes LikelyWeightGradient(const Call& s);

/// One fp32 tile of partial sums per thread block. The tile sides are the first of 64, 128, 256
/// that cover K and C (at most max_k, max_c); K/side × C/side × taps tiles, split along the pixels
/// as often as the blocks allow, and nothing when that is not at least twice.
Bytes TilePartials(const Call& s, Int max_k, Int max_c, Int blocks);
/// Into how many whole partial sums the gradient is split, when one wave of blocks is filled.
Int WaveSplits(const Call& s, Int tile_k, Int tile_c);

/// The figure that holds in 99 % of the measured calls of each class.
Bytes UpperBound(const Call& s, Bytes likely);

}  // namespace plimsoll::convolution
