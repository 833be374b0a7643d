// LSTM, GRU and plain recurrent layers, as cuDNN runs them: a few small kernels for each step of
// each layer and direction, one after the other, which take as long to launch as to run. How wide
// they are hardly matters: 361 layers on an H200, of 128 to 1,024 values, batches of 8 to 128. A
// layer of few values stays in one kernel for all its steps, but not in bf16. A third was kept
// aside: of its 109 wide layers the forward is off by 15 % at the median and 32 % at p90, the
// backward by 16 and 35 %; of its 12 narrow ones by 29 and 49 %, and by 14 and 48 %.
#include <algorithm>

#include "job/time/kernel_rules.h"

namespace plimsoll {
namespace {

/// In microseconds: for each step, and besides; of one layer and direction.
struct StepCost {
  double step = 0, start = 0;
};
constexpr StepCost kForward = {17.25, 350}, kBackward = {18.5, 800};
constexpr StepCost kForwardAtOnce = {1.0, 100}, kBackwardAtOnce = {1.25, 350};
/// Layers of 128 stay in one kernel, those of 320 do not.
constexpr std::int64_t kWidestAtOnce = 256;

/// `mode` is where the mode of cuDNN stands, and after it the sizes: as src/job/rules/recurrent.cc
/// reads them.
KernelTime RecurrentTime(const Call& call, const TimeContext& context, std::size_t mode,
                         bool backward) {
  const auto input = call.TensorArg(0);
  if (!input || (*input)->dims() < 2 || (*input)->dims() > 3) return Pointwise(call, context);
  const Layout& x = **input;
  const std::int64_t hidden = call.IntArg(mode + 1).value_or(1);
  const auto layers = double(std::max<std::int64_t>(1, call.IntArg(mode + 3).value_or(1)));
  const bool batch_first = call.BoolArg(mode + 4, false);
  const double directions = call.BoolArg(mode + 7, false) ? 2 : 1;
  const double steps =
      x.dims() == 3 ? double(x.sizes[batch_first ? 1 : 0]) : double(call.IntsArg(mode + 8).size());
  const bool at_once = hidden <= kWidestAtOnce && x.dtype != DType::kBFloat16;
  const StepCost& cost =
      backward ? (at_once ? kBackwardAtOnce : kBackward) : (at_once ? kForwardAtOnce : kForward);
  const double us = layers * directions * (cost.start + steps * cost.step);
  return {.us = std::max(us, Pointwise(call, context).us), .kernels = 1};
}

}  // namespace

KernelTime Recurrent(const Call& call, const TimeContext& context) {
  return RecurrentTime(call, context, 6, false);
}
KernelTime RecurrentBack(const Call& call, const TimeContext& context) {
  return RecurrentTime(call, context, 10, true);
}

}  // namespace plimsoll
