// Pooling, interpolation, embeddings.
#include "job/time/kernel_rules.h"

#include <algorithm>

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

KernelTime Interpolate(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  const auto input = call.TensorArg(0);
  if (input && IsChannelsLast(**input) && call.results() > 0) {
    const ChannelsLastModel& last = context.model.channels_last;
    return {.us = last.start + double(call.Result(0)->Numel()) * last.interpolate * 1e-6,
            .kernels = 1};
  }
  return {.us = model.start + std::max(moved, TrafficOf(call).elements * model.interpolate * 1e-6),
          .kernels = 1};
}

/// Many gradients are added to one place, one after the other.
KernelTime InterpolateBackward(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const double from = ElementsOf(call, 0);
  const double to = call.results() > 0 ? std::max(1.0, double(call.Result(0)->Numel())) : 1;
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  const auto gradient = call.TensorArg(0);
  const double collision = gradient && IsChannelsLast(**gradient)
                               ? context.model.channels_last.interpolate_collision
                               : model.interpolate_collision;
  return {.us = 2 * model.start +
                std::max(moved * model.interpolate_backward, from * from / to * collision * 1e-6),
          .kernels = 2};
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
