#include "job/cudnn/convolution_engines.h"

#include <algorithm>

// Below: x, y, w are the bytes of input, output and weight; X, Y, W the same with padded channels.
// The share in brackets is that of measured calls within max(64 KiB, 2 %).

namespace plimsoll::convolution {

namespace {

constexpr double kMega = 1e6;

bool Forward(const Call& s) { return s.direction == ConvDirection::kForward; }
bool BackwardData(const Call& s) { return s.direction == ConvDirection::kBackwardData; }
bool BackwardWeight(const Call& s) { return s.direction == ConvDirection::kBackwardWeight; }

double Ratio(Bytes a, Bytes b) { return static_cast<double>(a) / static_cast<double>(b); }

Bytes DepthwiseTransposedWeight(const Call& s) {
  if (s.side == 3 && s.dilation == 1) return s.Half() ? 0 : s.real.Sum() + 1'000'000;
  return s.side == 2 && s.Half() ? s.widened : 0;
}

/// cuDNN's NHWC engine sums eight partial gradients per image, channels padded to 32; outside its
/// reach the groups are widened and the call becomes an ordinary one.
Bytes DepthwiseChannelsLast(const Call& s) {
  const bool even = s.ho % 2 == 0;
  if (s.Half()) {
    if (s.pixels <= 684) return 0;
    if (s.dilation > 1) return Times(s.n, s.c, s.c) > 900'000 && s.real.w < 9800 ? s.widened : 0;
    if (!even) return s.real.y > 8'800'000 && s.real.w > 57344 ? s.widened : 0;
    if (s.side <= 7) return Times(8 * 4, s.n, CeilDiv(s.c, 32) * 32, s.taps);
    return s.macs > 240 * kMega ? s.widened : 0;
  }
  if (s.pixels <= 8192) return 0;
  if (!even) return s.pixels > 1 << 18 ? s.widened : 0;
  if (s.dilation > 1) return s.c <= 224 ? s.widened : 0;
  if (s.side <= 5) return s.real.w <= 10'400 ? 274'000 : 1'380'000;
  return Ratio(s.real.y, s.real.w) > 1728 ? s.widened : 0;
}

/// The sum over channels and taps is split, and added up in an fp32 output padded to 32 channels:
/// large kernels with few channels to write.
Bytes SplitOutput(const Call& s) {
  const Int channels = Forward(s) ? s.k : s.c;
  const Int pixels = Forward(s) ? s.pixels : s.pixels_in;
  if (!s.Half() || s.side < 7 || channels > 56 || s.stride > 1) return 0;
  if (Forward(s) && (pixels <= 361 || s.pixels_in > 25344)) return 0;
  if (BackwardData(s) &&
      (channels > 44 || s.MoreChannels() <= 76 || Ratio(s.real.y, s.real.w) > 34)) {
    return 0;
  }
  return Times(pixels, CeilDiv(channels, 32) * 32, 4);
}

Bytes OrdinaryForward(const Call& s) {
  const Int depth = Times(s.group_c, s.taps);  // the length of one dot product
  if (s.Half()) {
    // No copies, four bytes for each step of the dot product: a table of offsets, by its size.
    if (!s.nhwc && s.side >= 7 && Times(s.c, s.k) > 24576 && s.real.y > 720'000 &&
        s.real.x <= 38'000'000 && s.h > 12) {
      return Times(depth, 4);
    }
    if (s.nhwc && s.side >= 7 && s.k > 56 && s.real.w > 7'000'000 && s.real.x <= 12'000'000 &&
        s.pixels_in > 2736) {
      return s.padded.Sum();
    }
    return (s.nhwc ? 0 : s.padded.Sum()) + SplitOutput(s);
  }
  const Bytes without_output = s.padded.x + s.padded.w;  // the output is written as it should be
  if (s.nhwc) return s.side >= 7 || s.dilation > 6 ? without_output : 0;
  if (s.side >= 7) {
    const bool direct = depth <= 3020 && s.h > 22 && Times(s.group_k, s.taps) > 4704;
    return direct ? without_output : s.padded.Sum();
  }
  if (depth <= 1240 && s.real.x <= 2'700'000 && s.real.y > 66'000) {
    return depth <= 384 && s.macs <= 200 * kMega ? 0 : without_output;
  }
  return s.dilation > 6 && depth <= 1240 ? without_output : s.padded.Sum();
}

Bytes OrdinaryBackwardData(const Call& s) {
  if (s.Half()) return (s.nhwc ? 0 : s.padded.Sum()) + SplitOutput(s);
  if (s.nhwc) {
    return s.side > 11 || s.dilation > 6 || s.stride > 2 ? s.padded.y + s.padded.w : 0;
  }
  if (s.side >= 7) {
    const bool small = s.macs <= 800 * kMega && Times(s.group_c, s.taps) <= 5800;
    return s.stride == 1 && small ? 0 : s.padded.Sum();
  }
  if (s.macs <= 160 * kMega) return s.side > 2 && s.real.y <= 443'000 ? 0 : s.padded.Sum();
  return Ratio(s.real.x, s.real.w) <= 0.1 && s.real.x <= 393'216 ? 0 : s.padded.Sum();
}

/// A batched matrix product per image needs no workspace forward and backward; copies only for
/// small images with many channels, where one product over the whole batch is faster.
Bytes PointwiseData(const Call& s) {
  if (s.nhwc) return 0;
  const Bytes copies = s.padded.x + s.padded.y;
  if (s.stride == 1) {
    const double r = Ratio(Times(s.n, s.k, s.c, 4), s.real.x + s.real.y);
    bool copied = false;
    if (Forward(s)) {
      copied = s.Half() ? r > 5 && s.n > 56 : s.FewerChannels() >= 1024;
    } else {
      copied = s.Half() ? r > 3 && s.k <= 544 && Ratio(s.real.x, s.real.w) <= 4.7
                        : s.k >= 2048 && s.c > 176;
    }
    return copied ? copies : 0;
  }
  if (s.Half()) return Forward(s) && Ratio(s.real.x, s.real.w) > 768 ? 0 : copies;
  if (Forward(s)) {
    return s.FewerChannels() > 88 && Ratio(s.real.x, s.real.w) <= 128 ? copies : 0;
  }
  return s.c > 176 && (s.real.y > 2'200'000 || s.k > 432) ? copies : 0;
}

/// fp32: whole partial sums, at most 33 of them for up to 8,192 pixels, 66 for up to 32,768.
Bytes PointwiseWeightChannelsLast(const Call& s) {
  if (s.Half()) {
    if (s.pixels <= 32768) return Ratio(s.real.y, s.real.w) <= 128 ? 0 : 16 * s.partial;
    return s.MoreChannels() <= 192 ? Times(WaveSplits(s, 64, 128), s.partial) : 4'000'000;
  }
  if (s.pixels <= 1024) return 0;
  const bool narrow = s.FewerChannels() <= 64;
  const Int wave = s.multiprocessors;
  const Int tiles = Times(CeilDiv(s.k, 128), CeilDiv(s.c, 128));
  if (s.pixels <= 8192) {
    return Times(std::clamp(wave / tiles, Int{1}, std::max(Int{1}, wave / 4)), s.partial);
  }
  if (s.pixels <= 32768 && !narrow) {
    return Times(std::clamp(2 * wave / tiles, Int{1}, std::max(Int{1}, wave / 2)), s.partial);
  }
  if (s.pixels > 32768 && narrow) return wave * 64 * 128 * 4;
  if (s.stride > 1) return TilePartials(s, 128, 128, wave);
  return Times(WaveSplits(s, 128, 256), s.partial);
}

Bytes PointwiseWeight(const Call& s) {
  if (s.nhwc) return PointwiseWeightChannelsLast(s);
  const Bytes copies = s.padded.x + s.padded.y;
  if (s.stride == 1) {
    const Bytes one_per_image = Times(s.n, s.k, s.c, 4);  // a batched product, then one sum
    if (Ratio(one_per_image, s.real.x + s.real.y) > 3) return copies;
    if (s.n > 1 || s.Half()) return one_per_image;
    return TilePartials(s, 128, 128, s.multiprocessors);
  }
  if (s.Half()) {
    const bool split = Ratio(s.real.y, s.real.w) > 96;
    return copies + (split ? Times(WaveSplits(s, 64, 64), s.partial) : 0);
  }
  return s.macs <= 800 * kMega ? 0 : copies + TilePartials(s, 128, 128, s.multiprocessors);
}

// A stem's weight is small and its sum long, so it is split often; how often varies too much to
// follow [16 bit 42 %, 486 calls; fp32 52 %, 351 calls].
Bytes FewChannelsHalfWeight(const Call& s) {
  if (s.pixels <= 6374) return s.macs <= 8 * kMega ? 0 : s.Copies();
  if (s.MoreChannels() > 432) return s.Copies() + s.partial;
  const double image = Ratio(s.real.x, s.real.w);
  if (image <= 1653) return s.Copies() + (image > 100 && !s.nhwc ? 56 : 23) * s.partial;
  return s.Copies() + (s.real.w <= 6480 ? 120 : 30) * s.partial;
}

Bytes FewChannelsSingleWeight(const Call& s) {
  if (s.pixels <= 3072 || s.macs <= 16 * kMega) return 0;
  if (s.c < 8 && Ratio(s.real.x, s.real.w) > 96) return 0;
  return s.padded.Sum() + (s.MoreChannels() > 216 ? 8 : 12) * s.partial;
}

}  // namespace

Bytes TilePartials(const Call& s, Int max_k, Int max_c, Int blocks) {
  const auto side = [](Int channels, Int most) -> Int {
    for (Int t : {64, 128}) {
      if (channels <= t || t == most) return t;
    }
    return 256;
  };
  const Int tile_k = side(s.k, max_k);
  const Int tile_c = side(s.c, max_c);
  const Int tiles = Times(CeilDiv(s.k, tile_k), CeilDiv(s.c, tile_c), s.taps);
  const Int splits = blocks / tiles;
  return splits >= 2 ? tiles * splits * tile_k * tile_c * 4 : 0;
}

Int WaveSplits(const Call& s, Int tile_k, Int tile_c) {
  const Int tiles = Times(CeilDiv(s.k, tile_k), CeilDiv(s.c, tile_c), s.taps);
  return std::max(Int{1}, s.multiprocessors / tiles);
}

// Forward and backward_data [99 %]; backward_weight NCHW is PyTorch's own kernel [99 %], except in
// fp16 where cuDNN has one that copies; NHWC [70 %].
Bytes LikelyDepthwise(const Call& s) {
  if (!BackwardWeight(s)) return 0;
  if (s.nhwc) return DepthwiseChannelsLast(s);
  if (s.transposed) return DepthwiseTransposedWeight(s);
  const bool cudnn = s.fp16 && (s.side == 3 || s.side == 5) && s.dilation == 1 && s.stride == 1 &&
                     s.c >= 32 && s.pixels_in > 12288 && Times(s.n, s.c, s.c) <= 1 << 20;
  return cudnn ? s.real.Sum() + 300'000 : 0;
}

// Either each group is widened to a power of two, or a quarter of the padded copies is made at a
// time; both to the byte where the choice is right [63 %, 957 calls].
Bytes LikelyGrouped(const Call& s) {
  const Bytes quarter = s.padded.Sum() / 4;
  if (s.side == 1) return s.nhwc || BackwardWeight(s) ? quarter : 0;
  if (BackwardWeight(s)) {
    const bool split = !s.Half() && Ratio(s.real.y, s.real.w) > 8;
    return s.widened + (split ? 2'000'000 : 0);
  }
  if (!s.nhwc && Forward(s) && s.Half() && Times(s.group_c, s.taps) <= 32) return 0;
  if (!s.nhwc && BackwardData(s) && !s.Half() && Times(s.group_k, s.taps) <= 48) return 0;
  return s.side >= 7 && std::max(s.group_c, s.group_k) > 16 ? quarter : s.widened;
}

Bytes LikelyPointwise(const Call& s) {
  return BackwardWeight(s) ? PointwiseWeight(s) : PointwiseData(s);
}

// Images (3 channels) into the first layer, or out of the last: padding to 8 or 4 dominates.
Bytes LikelyFewChannels(const Call& s) {
  const bool first = s.c < 8;
  if (Forward(s)) {
    if (first && s.Half()) return s.macs > 3200 * kMega ? s.Copies() : 0;
    if (first) return s.nhwc && s.side > 7 ? s.padded.x + s.padded.w : 0;
    return s.nhwc && (s.Half() || s.side <= 4) ? s.padded_copies : s.padded.Sum();
  }
  if (BackwardData(s)) {
    if (first && !s.Half() && !s.nhwc) return 0;
    if (first) return !s.Half() && s.real.w > 12288 ? s.padded.Sum() : s.Copies();
    if (!s.nhwc && !s.Half() && (s.pixels_in <= 6144 || s.real.w <= 6144)) return 0;
    return s.Copies();
  }
  return s.Half() ? FewChannelsHalfWeight(s) : FewChannelsSingleWeight(s);
}

// 16 bit: copies in NCHW and nothing in NHWC [forward 85 %, backward_data 92 %]; fp32 has more
// engines that read or write NCHW directly [73 %, 78 %].
Bytes LikelyOrdinary(const Call& s) {
  return Forward(s) ? OrdinaryForward(s) : OrdinaryBackwardData(s);
}

}  // namespace plimsoll::convolution
