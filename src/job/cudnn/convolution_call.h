// A convolution call as cuDNN sees it, with the sizes that the workspace rules are written in.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "job/cudnn/convolution_workspace.h"

namespace plimsoll::convolution {

using Int = std::int64_t;

/// Sizes stop growing here (1 PiB), so that sums and small multiples of them cannot overflow.
inline constexpr Bytes kTooLarge = Bytes{1} << 50;

/// a·b, at most kTooLarge; both at least 0.
Int Times(Int a, Int b);

template <typename... More>
Int Times(Int a, Int b, Int c, More... more) {
  return Times(Times(a, b), c, more...);
}

constexpr Int CeilDiv(Int a, Int b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Bytes of the input, the output and the weight.
struct Tensors {
  Bytes x = 0, y = 0, w = 0;
  Bytes Sum() const { return x + y + w; }
};

/// A transposed convolution has become the ordinary one that it is the gradient of: input and
/// output exchanged, and forward with backward_data; the rules of ordinary calls then hold for
/// transposed ones.
struct Call {
  Call(const ConvShape& shape, ConvDirection direction, int multiprocessors);

  ConvDirection direction;
  Int multiprocessors;
  Int e;  // bytes of an element
  bool fp16, nhwc, transposed;
  Int n, c, k, h, ho;            // h, ho: the longer side
  Int groups, group_c, group_k;  // channels in a group
  Int taps, side;                // kh·kw, the longer of kh and kw
  Int stride, dilation;
  Int pixels_in, pixels;  // n·h·w of the input, of the output
  bool winograd_kernel;   // 3×3, stride 1, dilation 1
  Int winograd_tiles;     // 4×4 tiles of the output
  Int fft_side;           // the power of two that holds image and kernel
  double macs;

  Tensors real;         // as they are
  Tensors padded;       // channels of a group rounded up to 8 (16 bit) or 4 (fp32): copies to NHWC
  Bytes padded_copies;  // NHWC already: only the tensors whose channels had to be rounded up
  Bytes widened;        // real, with each group widened to the power of two >= 4 that holds it
  Bytes partial;        // one fp32 weight gradient, padded
  Bytes widened_partial;

  bool Half() const { return e == 2; }
  Int FewerChannels() const { return c < k ? c : k; }
  Int MoreChannels() const { return c < k ? k : c; }
  bool Depthwise() const { return groups > 1 && groups == c && k % c == 0; }
  /// The copies that an NHWC engine needs in the layout at hand.
  Bytes Copies() const { return nhwc ? padded_copies : padded.Sum(); }
};

}  // namespace plimsoll::convolution
