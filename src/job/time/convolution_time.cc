// Convolutions. cuDNN computes in NHWC: a tensor in NCHW is brought into that layout by kernels of
// their own and back, except for 1×1 convolutions of stride 1, which are products as they lie.
#include "job/time/convolution_time.h"

#include <algorithm>
#include <cmath>

#include "job/time/depthwise_time.h"
#include "job/time/product_time.h"

namespace plimsoll {
namespace {

constexpr double kChannelsWithoutTensorCores = 4;
constexpr double kAlignment = 16;
constexpr std::int64_t kNearDilation = 8;
/// Channels.
constexpr double kSlowFrom = 96;
constexpr double kSlowTo = 192;
constexpr double kNarrow = 128;
constexpr double kTapsOf3x3 = 9;
/// Without a workspace cuDNN cannot bring the data into the layout that tensor cores want: it goes
/// at the plain rate, gradients in 16 bit at 0.56 of it (tests/data/operators/refused.jsonl.xz: 118
/// calls on an H200 take 15.8 times as long; 4.2 and 4.7 times in fp32, forward and backward, 7.2
/// in 16 bit forward).
constexpr double kPlainShare = 0.70;
constexpr double kRefusedHalfBackwardShare = 0.56;

enum class Way { kForward, kInput, kWeight };

/// How cuDNN computes groups of several channels. How many kernels a call has tells which of them
/// it took: the rule below is right for 64 % of 3,024 calls that were timed on an H200.
enum class GroupedKernels { kDirect, kTogether, kApart };
constexpr double kMostDirectTaps = 30;
constexpr double kMostTaps = 37;
/// Channels of a group times taps.
constexpr double kLongProduct = 1100;
constexpr double kKernelsTogether = 7;
/// Of each group.
constexpr double kKernelsApart = 4;

bool IsPowerOfTwo(double width) {
  const auto whole = static_cast<std::int64_t>(width);
  return whole > 0 && (whole & (whole - 1)) == 0;
}

/// The sizes of a convolution; one that is transposed has become the one that it is the gradient
/// of.
struct ConvolutionSizes {
  explicit ConvolutionSizes(const ConvShape& s)
      : pixels_in(double(s.n) * double(s.h) * double(s.w)),
        pixels_out(double(s.n) * double(s.ho) * double(s.wo)),
        c(double(s.c)),
        k(double(s.k)),
        taps(double(s.kh) * double(s.kw)),
        groups(std::max(1.0, double(s.groups))) {
    if (s.transposed) {
      std::swap(pixels_in, pixels_out);
      std::swap(c, k);
    }
    group_c = c / groups;
  }
  double pixels_in, pixels_out, c, k, taps, groups, group_c;

  /// Of all groups: as many products.
  ProductShape Product(Way way) const {
    const double group_k = k / groups;
    switch (way) {
      case Way::kForward:
        return {.m = pixels_out, .n = group_k, .k = group_c * taps, .batches = groups};
      case Way::kInput:
        return {.m = pixels_in, .n = group_c, .k = group_k * taps, .batches = groups};
      case Way::kWeight:
        return {.m = group_k, .n = group_c * taps, .k = pixels_out, .batches = groups};
    }
    return {};
  }

  double elements() const { return pixels_in * c + pixels_out * k; }
  double flops() const { return 2 * pixels_out * k * group_c * taps; }
};

struct Convolver {
  const ConvolutionCall& call;
  const TimeContext& context;
  const ConvolutionModel& model;
  ConvolutionSizes size;

  double element() const { return double(ElementSize(call.dtype)); }
  double plane() const { return double(call.shape.h) * double(call.shape.w); }

  bool Direct() const {
    const ConvShape& s = call.shape;
    if (s.channels_last) return true;
    if (s.ho * s.wo == 1 && s.h * s.w == 1) return true;
    return size.taps == 1 && s.h == s.ho && s.w == s.wo &&
           std::fmod(plane() * element(), kAlignment) == 0;
  }

  bool Padded() const {
    return std::fmod(size.c * element(), kAlignment) != 0 ||
           std::fmod(size.k * element(), kAlignment) != 0;
  }

  const ProductModel& ModelOf(Way way) const {
    return way == Way::kForward ? model.forward : way == Way::kInput ? model.input : model.weight;
  }

  double Arithmetic(Way way) const {
    return ProductTime(size.Product(way), ModelOf(way), context.model.multiprocessors) *
           Dilated(way);
  }

  GroupedKernels GroupedBy() const {
    const bool equal = size.group_c == size.k / size.groups && IsPowerOfTwo(size.group_c);
    if (equal && size.taps <= kMostDirectTaps) return GroupedKernels::kDirect;
    return size.group_c * size.taps > kLongProduct || size.taps > kMostTaps
               ? GroupedKernels::kApart
               : GroupedKernels::kTogether;
  }

  KernelTime Grouped(Way way) const {
    const TimeModel& models = context.model;
    const GroupedDirection& grouped = GroupedModelOf(way);
    const double copied = size.elements() * 1e-6;
    ProductShape shape = size.Product(way);
    const auto product = [&](const ProductModel& of) {
      return ProductTime(shape, of, models.multiprocessors) * Dilated(way);
    };
    switch (GroupedBy()) {
      case GroupedKernels::kDirect: {
        const double moved = MemoryTime(element() * size.elements(), models.memory);
        if (call.shape.channels_last) {
          return {.us = grouped.direct.start + std::max(product(grouped.direct), moved),
                  .kernels = 1};
        }
        return {.us = grouped.direct.start + product(grouped.direct) + moved * grouped.direct_pass,
                .kernels = kKernelsTogether};
      }
      case GroupedKernels::kTogether:
        return {.us = grouped.together.start + product(grouped.together) +
                      copied * grouped.together_element,
                .kernels = kKernelsTogether};
      case GroupedKernels::kApart:
        shape.batches = 1;
        return {.us = size.groups * (grouped.apart.start + product(grouped.apart)) +
                      copied * grouped.apart_element,
                .kernels = kKernelsApart * size.groups};
    }
    return {};
  }

  const GroupedDirection& GroupedModelOf(Way way) const {
    const TimeModel& models = context.model;
    const bool last = call.shape.channels_last;
    const GroupedModel& of = IsHalf(call.dtype)
                                 ? (last ? models.grouped_last_half : models.grouped_half)
                                 : (last ? models.grouped_last_tf32 : models.grouped_tf32);
    return way == Way::kForward ? of.forward : way == Way::kInput ? of.input : of.weight;
  }

  /// cuDNN's best kernels know no dilation, others only small ones of 3×3. For the gradient of an
  /// input of 128 or 144 channels it takes one in TF32 that is ten times slower; of 96 and 192 at
  /// times.
  double Dilated(Way way) const {
    const std::int64_t dilation = std::max(call.shape.dilation_h, call.shape.dilation_w);
    if (dilation <= 1) return 1;
    const bool far = dilation > kNearDilation;
    if (way == Way::kInput && !far && !IsHalf(call.dtype) && size.c > kSlowFrom &&
        size.c < kSlowTo) {
      return model.dilated_input_slow;
    }
    double slower = way == Way::kForward ? model.dilated_forward
                    : way == Way::kInput ? model.dilated_input
                                         : model.dilated_weight;
    if (far) slower *= model.dilated_far;
    if (size.taps > kTapsOf3x3) slower *= model.dilated_large;
    if (std::min(size.c, size.k) < kNarrow) slower *= model.dilated_narrow;
    return slower;
  }

  KernelTime One(Way way) const {
    if (size.groups > 1) return Grouped(way);
    const double moved = MemoryTime(element() * size.elements(), context.model.memory);
    const ProductModel& product = ModelOf(way);
    if (Direct()) {
      return {.us = product.start + std::max(Arithmetic(way), moved * model.direct), .kernels = 1};
    }
    const double padded = Padded() ? model.padded : 1;
    const double passes =
        padded * (way == Way::kForward ? model.pass_forward : model.pass_backward);
    return {.us = 3 * product.start + Arithmetic(way) + moved * passes, .kernels = 3};
  }

  KernelTime Refused(Way way) const {
    const bool half_gradient = IsHalf(call.dtype) && way != Way::kForward;
    const double rate = context.gpu.rates.fp32 * 1e-6 * kPlainShare *
                        (half_gradient ? kRefusedHalfBackwardShare : 1);
    const KernelTime granted = One(way);
    return {.us = std::max(granted.us, size.flops() / rate), .kernels = granted.kernels};
  }

  /// No tensor cores, and mostly no gradient of the input.
  KernelTime First() const {
    const double outputs = size.pixels_out * size.k;
    if (!call.backward) {
      return {.us = model.forward.start + size.flops() / model.first_rate +
                    outputs * model.first_output * 1e-6,
              .kernels = 2};
    }
    return {.us = model.weight.start + size.flops() / model.first_gradient_rate +
                  outputs * model.first_gradient_output * 1e-6,
            .kernels = 2};
  }
};

const ConvolutionModel& ConvolutionModelOf(const ConvolutionCall& call, const TimeModel& models) {
  if (call.shape.volume) return IsHalf(call.dtype) ? models.volume_half : models.volume_tf32;
  return IsHalf(call.dtype) ? models.convolution_half : models.convolution_tf32;
}

/// A tensor that lies otherwise than cuDNN is asked to compute is copied first: all are taken as
/// channels-last where the input or the weight is.
KernelTime CopiesToFormat(const Call& call, bool channels_last, const MemoryModel& memory) {
  KernelTime time;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, call.args()); ++i) {
    const auto tensor = call.TensorArg(i);
    if (!tensor || (*tensor)->dims() != 4) continue;
    const Layout& layout = **tensor;
    if (channels_last ? layout.IsContiguousIn({0, 2, 3, 1}) : layout.IsContiguous()) continue;
    const double elements = double(layout.Numel());
    // A part of a larger tensor is in the right order already.
    const bool reorders = layout.strides[channels_last ? 1 : 3] != 1;
    time += {.us = memory.start +
                   std::max(MemoryTime(2 * elements * double(ElementSize(layout.dtype)), memory),
                            reorders ? elements * memory.reorder * 1e-6 : 0),
             .kernels = 1};
  }
  return time;
}

}  // namespace

KernelTime ConvolutionTime(const Call& made, const ConvolutionCall& call,
                           const TimeContext& context, int refused) {
  const TimeModel& models = context.model;
  KernelTime time = CopiesToFormat(made, call.shape.channels_last, models.memory);
  if (IsDepthwise(call)) return time += DepthwiseTime(call, context);
  const Convolver convolver{call, context, ConvolutionModelOf(call, models),
                            ConvolutionSizes(call.shape)};
  const auto add = [&](Way way) {
    time += refused-- > 0 ? convolver.Refused(way) : convolver.One(way);
  };
  const bool transposed = call.shape.transposed;
  if (double(call.shape.c) <= kChannelsWithoutTensorCores && !transposed && !call.wants_input) {
    time += convolver.First();
  } else {
    if (!call.backward) add(transposed ? Way::kInput : Way::kForward);
    if (call.wants_input) add(transposed ? Way::kForward : Way::kInput);
    if (call.wants_weight) add(Way::kWeight);
  }
  if (call.wants_bias) {
    const double gradient = double(call.shape.n) * double(call.shape.k) * double(call.shape.ho) *
                            double(call.shape.wo) * convolver.element();
    time += {.us = models.reduction.start + MemoryTime(gradient, models.memory), .kernels = 1};
  }
  return time;
}

}  // namespace plimsoll
