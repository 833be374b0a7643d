// Pooling, interpolation, embeddings.
#include "job/time/kernel_rules.h"

#include <algorithm>
#include <cmath>

#include "job/time/product_time.h"
#include "job/time/traffic.h"

namespace plimsoll {
namespace {

KernelTime PerInput(const Call& call, const TimeContext& context, double ps) {
  const OtherModel& model = context.model.other;
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const double elements =
      backward && call.results() > 0 ? double(call.Result(0)->Numel()) : ElementsOf(call, 0);
  return {.us = model.start + std::max(elements * ps * 1e-6,
                                       MemoryTime(TrafficOf(call).bytes(), context.model.memory)),
          .kernels = 1};
}

}  // namespace

KernelTime MaxPool(const Call& call, const TimeContext& context) {
  return PerInput(call, context, context.model.other.max_pool);
}
KernelTime MaxPoolBackward(const Call& call, const TimeContext& context) {
  return PerInput(call, context, context.model.other.max_pool_backward);
}
KernelTime MeanPool(const Call& call, const TimeContext& context) {
  return PerInput(call, context, context.model.other.mean_pool);
}
KernelTime MeanPoolBackward(const Call& call, const TimeContext& context) {
  return PerInput(call, context, context.model.other.mean_pool_backward);
}

namespace {

/// max_pool3d_with_indices(self, kernel, stride, …), its backward (gradient, self, kernel, stride,
/// …), and those of avg_pool3d. One number holds for all three dimensions.
double Product(const Call& call, std::size_t arg) {
  const std::vector<std::int64_t> sizes = call.IntsArg(arg);
  double product = 1;
  for (const std::int64_t n : sizes) product *= double(std::max<std::int64_t>(n, 1));
  return sizes.size() == 1 ? product * product * product : product;
}

bool TakesTheLargest(const Call& call) { return BaseName(call.op()).starts_with("max"); }

/// Blocks of 32×8 threads over each plane.
double BlocksOver(const Layout& layout) {
  const std::size_t dims = layout.dims();
  if (dims < 3) return 1;
  const double height = double(layout.sizes[dims - 2]);
  const double width = double(layout.sizes[dims - 1]);
  const double planes = double(layout.Numel()) / std::max(1.0, height * width);
  return planes * std::ceil(height / 8) * std::ceil(width / 32);
}

}  // namespace

KernelTime VolumePool(const Call& call, const TimeContext& context) {
  const PoolModel& model = context.model.pool;
  const auto input = call.TensorArg(0);
  if (!input || call.results() == 0) return Pointwise(call, context);
  const bool largest = TakesTheLargest(call);
  const double block = (largest ? model.largest : model.mean) +
                       (largest ? model.largest_tap : model.mean_tap) * Product(call, 1);
  KernelTime time = CopyInOnePiece(**input, context);
  time += {.us = model.start + std::max(BlocksOver(*call.Result(0)) * block * 1e-3,
                                        MemoryTime(TrafficOf(call).bytes(), context.model.memory)),
           .kernels = 1};
  return time;
}

KernelTime VolumePoolBackward(const Call& call, const TimeContext& context) {
  const PoolModel& model = context.model.pool;
  const auto gradient = call.TensorArg(0);
  if (!gradient) return Pointwise(call, context);
  const bool half = IsHalf((*gradient)->dtype);
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  const double window = Product(call, 2);
  double computed = 0;
  if (TakesTheLargest(call)) {
    const double stride = call.IntsArg(3).empty() ? window : Product(call, 3);
    const double others = std::max(0.0, window / stride - 1);
    const double ps = half ? model.largest_backward_half + model.overlap_half * others
                           : model.largest_backward + model.overlap * others;
    computed = double((*gradient)->Numel()) * ps * 1e-6;
  } else {
    computed = BlocksOver(**gradient) * (model.mean_backward + model.mean_backward_tap * window) *
               (half ? model.mean_backward_half : 1) * 1e-3;
  }
  KernelTime time = CopyInOnePiece(**gradient, context);
  time += {.us = 2 * model.start + std::max(computed, moved), .kernels = 2};
  return time;
}

KernelTime Interpolate(const Call& call, const TimeContext& context) {
  const InterpolationModel& model = context.model.interpolation;
  const auto input = call.TensorArg(0);
  if (!input || call.results() == 0) return Pointwise(call, context);
  const Layout& result = *call.Result(0);
  if (IsChannelsLast(**input)) {
    const ChannelsLastModel& last = context.model.channels_last;
    return {.us = last.start + double(result.Numel()) * last.interpolate * 1e-6, .kernels = 1};
  }
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  double computed = double(result.Numel()) * model.nearest * 1e-6;
  if (result.dims() == 4 && BaseName(call.op()).find("nearest") == std::string_view::npos) {
    const double planes = double(result.sizes[0]) * double(result.sizes[1]);
    computed = std::max(planes * model.plane, double(result.Numel()) * model.result * 1e-6);
  }
  return {.us = model.start + std::max(moved, computed), .kernels = 1};
}

/// Many gradients are added to one place, one after the other.
KernelTime InterpolateBackward(const Call& call, const TimeContext& context) {
  const InterpolationModel& model = context.model.interpolation;
  const auto gradient = call.TensorArg(0);
  if (!gradient || call.results() == 0) return Pointwise(call, context);
  const double from = double((*gradient)->Numel());
  const double to = std::max(1.0, double(call.Result(0)->Numel()));
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  const bool half = IsHalf((*gradient)->dtype);
  double ps = half ? model.gradient_half + model.collision_half * from / to
                   : model.gradient + model.collision * from / to;
  if (IsChannelsLast(**gradient))
    ps = context.model.channels_last.interpolate_collision * from / to;
  return {.us = 2 * model.start + std::max(moved, from * ps * 1e-6), .kernels = 2};
}

KernelTime EmbeddingBackward(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const auto gradient = call.TensorArg(0);
  if (!gradient) return Pointwise(call, context);
  return {.us = model.sort + 2 * TouchedBytes(**gradient) / model.embedding_rate +
                MemoryTime(TrafficOf(call).written, context.model.memory),
          .kernels = 8};
}

}  // namespace plimsoll
