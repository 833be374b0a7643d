// The gradient of a k×k weight: a product with few rows and columns and a very long sum (over the
// pixels), so cuDNN splits the sum. What comes on top of the copies is one of
//   nothing                       no split: few pixels, or tiles enough to fill the GPU
//   tiles · splits · tile bytes   one fp32 tile per thread block, a full wave of blocks
//   s · P                         s whole fp32 gradients; s from 1 to 130 without visible rule
//   36 values per 4×4 tile        Winograd, fp32 NCHW 3×3
// The third is 20 % of the calls and most of what is missed.

#include <algorithm>

#include "job/cudnn/convolution_engines.h"

namespace plimsoll::convolution {

namespace {

double RatioOf(Bytes a, Bytes b) { return static_cast<double>(a) / static_cast<double>(b); }

struct Tiling {
  Int tiles;
  Bytes tile;
};

/// fp32 tiles of 128×128. A side of at most 64 channels takes two taps at a time, so 9 taps are 5
/// tiles: C < 64, K of 129 to 256, 3×3 is 10 tiles · 13 splits · 64 KiB, seen 17 of 44 times above
/// 12,000 pixels; C and K of 65 to 128 channels 9 · 14 · 64 KiB, 34 of 59 times.
Tiling SinglePrecisionTiling(const Call& s) {
  const Int pairs = CeilDiv(s.taps, 2);
  if (s.c <= 64 && s.k <= 64) return {s.taps, 64 * 64 * 4};
  if (s.c <= 64) return {Times(CeilDiv(s.k, 128), pairs), (s.k <= 128 ? 64 : 128) * 128 * 4};
  if (s.k <= 64) {
    return {s.c <= 128 ? pairs : Times(CeilDiv(s.c, 128), s.taps), 64 * 128 * 4};
  }
  return {Times(CeilDiv(s.k, 128), CeilDiv(s.c, 128), s.taps), 128 * 128 * 4};
}

Bytes HalfPrecision(const Call& s) {
  const bool many_tiles = Times(CeilDiv(s.c, 128), CeilDiv(s.k, 256), s.taps) > 120;
  const bool large = s.pixels > 4664 && s.real.w > 2'048'256 && many_tiles && s.k > 68;
  if (large && s.side > 9) return s.Copies();
  // An fp32 gradient and its row of flags, without copies.
  if ((large && s.side >= 7) || (s.side >= 7 && s.FewerChannels() >= 256 && s.real.x > 340'000)) {
    return s.partial + s.partial / 512;
  }
  const Bytes copies = s.nhwc ? 0 : s.padded.Sum();
  if (s.side >= 7 || s.pixels <= 24576) return copies;
  // 9 taps leave 13 tiles each where 14 would fit, 25 taps 4 and not 5: 120 blocks' worth on 132.
  return copies + TilePartials(s, 128, s.nhwc ? 128 : 64, s.multiprocessors * 10 / 11);
}

bool Winograd(const Call& s) {
  return s.winograd_kernel && s.FewerChannels() > 20 && s.real.w <= 2'350'000 &&
         s.real.y > 85'000 && (s.real.y <= 3'200'000 || (s.pixels <= 7296 && s.n <= 4));
}

Bytes SinglePrecisionPlain(const Call& s) {
  if (s.pixels <= 1584 && s.c <= 28) return 0;
  if (Winograd(s)) return Times(144, Times(s.winograd_tiles, s.c + s.k) + Times(s.c, s.k));
  if (s.real.y <= 262'144) return 0;
  const Bytes copies = s.padded.Sum();
  if (s.side >= 7) return copies + (s.pixels > 24576 ? 8 * s.partial : 0);
  if (s.real.y > 8'400'000) return copies + TilePartials(s, 128, 128, s.multiprocessors);
  if (s.k <= 64) {
    const Int splits = s.real.w <= 262'144 ? WaveSplits(s, 128, 128) : 4;
    return copies + Times(splits, s.partial);
  }
  return copies + (RatioOf(s.real.y, s.real.w) > 6 ? 8 * s.partial : 0);
}

Bytes SinglePrecisionChannelsLast(const Call& s) {
  if (s.pixels <= 2048) return 0;
  if (s.side >= 7 || s.dilation > 6) return s.padded.x + s.padded.y;
  return TilePartials(s, 128, 128, s.multiprocessors);
}

Bytes SinglePrecision(const Call& s) {
  const double y = RatioOf(s.real.y, s.real.w);
  const double x = RatioOf(s.real.x, s.real.w);
  if (y <= 39 && s.pixels > 1584 && s.FewerChannels() > 76 && s.real.w > 1'379'328 &&
      s.real.w <= 9'326'592 && x > 46) {
    return s.padded.x + s.padded.y;
  }
  const Tiling tiling = SinglePrecisionTiling(s);
  const double steps = static_cast<double>(s.pixels) * static_cast<double>(tiling.tiles) /
                       static_cast<double>(s.multiprocessors);
  if (y > 39 && s.FewerChannels() <= 76 && steps <= 7571) {
    return s.Copies() + s.multiprocessors / tiling.tiles * tiling.tiles * tiling.tile;
  }
  return s.nhwc ? SinglePrecisionChannelsLast(s) : SinglePrecisionPlain(s);
}

}  // namespace

// Within max(64 KiB, 2 %): 16 bit 60 % of 5,661 calls, fp32 50 % of 3,785.
Bytes LikelyWeightGradient(const Call& s) {
  return s.Half() ? HalfPrecision(s) : SinglePrecision(s);
}

}  // namespace plimsoll::convolution
