#include "job/time/kernel_rules.h"

#include <algorithm>

#include "job/time/product_time.h"
#include "job/time/traffic.h"

namespace plimsoll {
namespace {

/// The longest row that a warp takes for itself.
constexpr std::int64_t kShortRow = 1024;

}  // namespace

/// Sums over the outer dimensions go down columns, row by row.
KernelTime Sum(const Call& call, const TimeContext& context) {
  const ReductionModel& model = context.model.reduction;
  const auto input = call.TensorArg(0);
  if (!input || call.results() == 0) return Pointwise(call, context);
  const double from = double((*input)->Numel());
  const double to = std::max(1.0, double(call.Result(0)->Numel()));
  const std::vector<std::int64_t> dims = call.IntsArg(1);
  const bool columns = !dims.empty() && to > 1 && dims.front() == 0;
  const double rows = columns ? from / to : 0;
  return {.us = model.start + MemoryTime(TrafficOf(call).bytes(), context.model.memory) +
                rows * model.row * 1e-3,
          .kernels = 1};
}

/// _softmax(self, dim, …), _softmax_backward_data(gradient, result, dim, …)
KernelTime Softmax(const Call& call, const TimeContext& context) {
  const ReductionModel& model = context.model.reduction;
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const auto input = call.TensorArg(backward ? 1 : 0);
  if (!input || (*input)->dims() == 0) return Pointwise(call, context);
  const Traffic traffic = TrafficOf(call);
  const double streamed =
      traffic.bytes() / (backward ? model.softmax_backward_rate : model.softmax_rate);
  const auto dims = static_cast<std::int64_t>((*input)->dims());
  const std::int64_t dim = call.IntArg(backward ? 2 : 1).value_or(-1);
  double us = streamed;
  if (dim != -1 && dim != dims - 1) {
    const double ps = backward ? model.softmax_across_backward : model.softmax_across;
    us = std::max(streamed, traffic.elements * ps * 1e-6);
  } else if ((*input)->sizes.back() <= kShortRow) {
    const double ps = backward ? model.softmax_short_backward : model.softmax_short;
    us = std::max(MemoryTime(traffic.bytes(), context.model.memory), traffic.elements * ps * 1e-6);
  }
  return {.us = context.model.memory.start + us, .kernels = 1};
}

KernelTime Loss(const Call& call, const TimeContext& context) {
  const ReductionModel& model = context.model.reduction;
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const auto input = call.TensorArg(backward ? 1 : 0);
  if (!input || (*input)->dims() < 1) return Pointwise(call, context);
  const Layout& x = **input;
  // One image after the other is summed up by one block: its pixels are the critical path.
  const double pixels = x.dims() == 4 ? double(x.sizes[2]) * double(x.sizes[3]) : 0;
  const double rows = x.dims() <= 2 ? double(x.sizes[0]) : 0;
  const double zeros = backward ? MemoryTime(TrafficOf(call).written, context.model.memory) : 0;
  const double share = backward ? 0.25 : 1;
  return {
      .us = model.loss + (rows * model.loss_row + pixels * model.loss_pixel) * 1e-3 * share + zeros,
      .kernels = backward ? 2.0 : 1.0};
}

}  // namespace plimsoll
