#include "job/time/kernel_rules.h"

#include <algorithm>

#include "job/time/product_time.h"
#include "job/time/traffic.h"

namespace plimsoll {
namespace {

constexpr double kManyRows = 65536;

KernelTime ChannelsLastBatchNorm(const Layout& input, bool native, bool backward,
                                 const ChannelsLastModel& model) {
  const double ps = native ? (backward ? model.native_backward : model.native_forward)
                           : (backward ? model.cudnn_backward : model.cudnn_forward);
  const double narrow = native ? model.native_narrow : model.cudnn_narrow;
  return {
      .us = model.start + double(input.Numel()) * ps * 1e-6 * (1 + narrow / double(input.sizes[1])),
      .kernels = native ? 3.0 : 1.0};
}

}  // namespace

KernelTime BatchNorm(const Call& call, const TimeContext& context) {
  const std::string_view name = BaseName(call.op());
  const bool backward = name.find("backward") != std::string_view::npos;
  const bool native = name.starts_with("native");
  // The gradient comes first in the native one, the input in cuDNN's: their shapes are the same.
  const auto input = call.TensorArg(0);
  if (!input || (*input)->dims() < 2) return Pointwise(call, context);
  if (IsChannelsLast(**input)) {
    return ChannelsLastBatchNorm(**input, native, backward, context.model.channels_last);
  }
  const NormalizationModel& model = context.model.normalization;
  const double elements = double((*input)->Numel());
  const double size = double(ElementSize((*input)->dtype));
  const double channels = double((*input)->sizes[1]);
  const double a = native ? (backward ? model.native_backward : model.native_forward)
                          : (backward ? model.cudnn_backward : model.cudnn_forward);
  const double cold = 1 + model.cold * std::min(1.0, elements * size * (backward ? 2 : 1) / 60e6);
  const double statistics = elements / std::min(channels, model.slots) * a * 1e-3 * cold;
  const double row = native ? (backward ? model.native_row_backward : model.native_row)
                            : (backward ? model.cudnn_row_backward : model.cudnn_row);
  const double rows = double((*input)->sizes[0]) * channels * row * 1e-3;
  return {.us = (native ? 2 : 1) * model.start +
                MemoryTime((backward ? 5 : 3) * elements * size, context.model.memory) +
                statistics + rows,
          .kernels = native ? 2.0 : 1.0};
}

/// native_group_norm(self, weight, bias, N, C, HW, groups, eps), its backward (gradient, self,
/// mean, rstd, weight, N, C, HW, groups, mask).
KernelTime GroupNormTime(const Call& call, const TimeContext& context) {
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const auto input = call.TensorArg(backward ? 1 : 0);
  if (!input || (*input)->dims() < 2) return Pointwise(call, context);
  const NormalizationModel& model = context.model.normalization;
  const double elements = double((*input)->Numel());
  const double groups =
      double(std::max<std::int64_t>(1, call.IntArg(backward ? 8 : 6).value_or(1)));
  const double blocks = std::max(1.0, double((*input)->sizes[0]) * groups);
  const double ns = backward ? model.group_element_backward : model.group_element;
  // The backward has a block for each channel of each image.
  const double waves = std::max(1.0, blocks / model.slots);
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory) *
                       (backward ? model.group_backward : model.group_forward);
  return {.us = model.group_start + moved + elements / blocks * waves * ns * 1e-3,
          .kernels = backward ? 5.0 : 3.0};
}

KernelTime LayerNorm(const Call& call, const TimeContext& context) {
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const std::vector<std::int64_t> shape = call.IntsArg(backward ? 2 : 1);
  double width = 1;
  for (const std::int64_t n : shape) width *= double(std::max<std::int64_t>(n, 1));
  const NormalizationModel& model = context.model.normalization;
  const double elements = ElementsOf(call, backward ? 1 : 0);
  const double rows = elements / width;
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  // What does not lie in one piece is copied first: the input, in the backward the gradient too.
  KernelTime time;
  for (std::size_t arg = 0; arg < (backward ? 2 : 1); ++arg) {
    if (const auto read = call.TensorArg(arg)) time += CopyInOnePiece(**read, context);
  }
  if (!backward) {
    time += {.us = model.layer_start + moved * model.layer_forward + rows * model.layer_row * 1e-3,
             .kernels = 1};
    return time;
  }
  const double row = rows > kManyRows ? model.layer_many_rows_backward : model.layer_row_backward;
  time += {.us = 2 * model.layer_start + moved * model.layer_backward + rows * row * 1e-3,
           .kernels = 2};
  return time;
}

}  // namespace plimsoll
