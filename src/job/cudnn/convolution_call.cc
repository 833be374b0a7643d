#include "job/cudnn/convolution_call.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace plimsoll::convolution {

namespace {

Int RoundUp(Int a, Int multiple) { return Times(CeilDiv(a, multiple), multiple); }

Int PowerOfTwo(Int a) {
  return static_cast<Int>(std::bit_ceil(static_cast<std::uint64_t>(std::min(a, kTooLarge))));
}

struct Area {
  Int in, out;
};

Tensors Sizes(const Call& s, Area area, Int group_c, Int group_k) {
  return {Times(s.n, s.groups, group_c, area.in, s.e), Times(s.n, s.groups, group_k, area.out, s.e),
          Times(s.groups, group_k, group_c, s.taps, s.e)};
}

ConvDirection Exchanged(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::kForward:
      return ConvDirection::kBackwardData;
    case ConvDirection::kBackwardData:
      return ConvDirection::kForward;
    case ConvDirection::kBackwardWeight:
      break;
  }
  return direction;
}

}  // namespace

Int Times(Int a, Int b) {
  if (a == 0 || b == 0) return 0;
  return a > kTooLarge / b ? kTooLarge : a * b;
}

Call::Call(const ConvShape& shape, ConvDirection given_direction, int given_multiprocessors)
    : direction(shape.transposed ? Exchanged(given_direction) : given_direction),
      multiprocessors(std::max(1, given_multiprocessors)),
      e(shape.element_bytes),
      fp16(shape.is_fp16),
      nhwc(shape.channels_last),
      transposed(shape.transposed),
      n(shape.n),
      c(shape.c),
      k(shape.k),
      h(std::max(shape.h, shape.w)),
      ho(std::max(shape.ho, shape.wo)),
      groups(shape.groups),
      taps(Times(shape.kh, shape.kw)),
      side(std::max(shape.kh, shape.kw)),
      stride(std::max(shape.stride_h, shape.stride_w)),
      dilation(std::max(shape.dilation_h, shape.dilation_w)) {
  Area area{Times(shape.h, shape.w), Times(shape.ho, shape.wo)};
  Int out_h = shape.ho;
  Int out_w = shape.wo;
  if (transposed) {
    std::swap(c, k);
    std::swap(h, ho);
    std::swap(area.in, area.out);
    out_h = shape.h;
    out_w = shape.w;
  }
  group_c = c / groups;
  group_k = k / groups;
  pixels_in = Times(n, area.in);
  pixels = Times(n, area.out);
  winograd_kernel = shape.kh == 3 && shape.kw == 3 && stride == 1 && dilation == 1;
  winograd_tiles = Times(n, CeilDiv(out_h, 4), CeilDiv(out_w, 4));
  fft_side = PowerOfTwo(h + side - 1);
  macs = static_cast<double>(pixels) * static_cast<double>(group_c) * static_cast<double>(k) *
         static_cast<double>(taps);

  const Int multiple = e == 2 ? 8 : 4;
  const Int padded_c = RoundUp(group_c, multiple);
  const Int padded_k = RoundUp(group_k, multiple);
  const Int wide = PowerOfTwo(std::max({group_c, group_k, Int{4}}));
  real = Sizes(*this, area, group_c, group_k);
  padded = Sizes(*this, area, padded_c, padded_k);
  const bool pads_c = padded_c != group_c;
  const bool pads_k = padded_k != group_k;
  padded_copies =
      (pads_c ? padded.x : 0) + (pads_k ? padded.y : 0) + (pads_c || pads_k ? padded.w : 0);
  widened = Sizes(*this, area, wide, wide).Sum();
  partial = padded.w / e * 4;
  widened_partial = Times(groups, wide, wide, taps, 4);
}

}  // namespace plimsoll::convolution
