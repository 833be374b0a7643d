// Convolutions of one channel a group: PyTorch's own kernels, in channels-last cuDNN's. Those are
// written for kernels of 3×3, 5×5 and 7×7; what is larger or dilated goes by ones that are ten
// times slower.
#include "job/time/depthwise_time.h"

#include <algorithm>

#include "job/time/product_time.h"

namespace plimsoll {
namespace {

constexpr std::int64_t kFewImages = 4;

struct Depthwise {
  Depthwise(const ConvolutionCall& of, const TimeContext& context)
      : call(of), model(ModelOf(of, context.model)) {
    const ConvShape& s = call.shape;
    taps = double(s.kh) * double(s.kw);
    inputs = double(s.n) * double(s.c) * double(s.h) * double(s.w);
    outputs = double(s.n) * double(s.k) * double(s.ho) * double(s.wo);
    general = s.channels_last && (s.dilation_h > 1 || s.dilation_w > 1 || taps > 49);
    strided = s.channels_last && (s.stride_h > 1 || s.stride_w > 1);
    moved = MemoryTime((inputs + outputs) * double(ElementSize(call.dtype)), context.model.memory);
  }

  static const DepthwiseModel& ModelOf(const ConvolutionCall& call, const TimeModel& models) {
    if (call.shape.volume) return models.depthwise_volume;
    if (!call.shape.channels_last) return models.depthwise;
    return IsHalf(call.dtype) ? models.depthwise_last_half : models.depthwise_last_fp32;
  }

  KernelTime One(const DepthwiseDirection& direction, double elements) const {
    double ps = taps <= 9    ? direction.of_3 * taps / 9
                : taps <= 25 ? direction.of_5 * taps / 25
                             : direction.of_49 * taps / 49;
    if (general) ps = direction.general_tap * taps;
    if (strided) ps *= direction.strided;
    return {.us = model.start + std::max(moved, elements * ps * 1e-6), .kernels = 1};
  }

  const ConvolutionCall& call;
  const DepthwiseModel& model;
  double taps = 1, inputs = 0, outputs = 0;
  bool general = false;
  bool strided = false;
  double moved = 0;
};

}  // namespace

bool IsDepthwise(const ConvolutionCall& call) {
  return call.shape.groups > 1 && call.shape.groups == call.shape.c;
}

KernelTime DepthwiseTime(const ConvolutionCall& call, const TimeContext& context) {
  const Depthwise depthwise(call, context);
  KernelTime time;
  if (!call.backward) {
    const bool few = call.shape.n <= kFewImages && !depthwise.general;
    time += depthwise.One(depthwise.model.output,
                          depthwise.outputs * (few ? depthwise.model.few_images : 1));
  }
  if (call.wants_input) time += depthwise.One(depthwise.model.input_gradient, depthwise.inputs);
  if (call.wants_weight) time += depthwise.One(depthwise.model.weight_gradient, depthwise.outputs);
  return time;
}

}  // namespace plimsoll
