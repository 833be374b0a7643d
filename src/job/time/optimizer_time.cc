#include "job/time/kernel_rules.h"

#include <algorithm>
#include <cmath>

#include "job/time/product_time.h"
#include "job/time/traffic.h"

namespace plimsoll {

KernelTime Foreach(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  Traffic traffic = TrafficOf(call);
  const std::vector<Tensor> first = call.TensorsArg(0);
  if (BaseName(call.op()).ends_with('_')) {
    for (const Tensor& t : first) traffic.written += TouchedBytes(*t.layout);
  }
  if (traffic.bytes() <= 0) return {};
  const double launches = std::max(1.0, std::ceil(double(first.size()) / model.foreach_tensors));
  return {.us = launches * model.foreach_start +
                model.foreach_pass * MemoryTime(traffic.bytes(), context.model.memory),
          .kernels = launches};
}

/// plimsoll.optimizer_step_(parameters, bytes for each element, whether one tensor at a time): a
/// part of another optimizer's step than the captured one.
KernelTime OptimizerStep(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const std::vector<Tensor> parameters = call.TensorsArg(0);
  double elements = 0;
  for (const Tensor& t : parameters) elements += double(t.layout->Numel());
  const bool one_by_one = call.BoolArg(2, false);
  const double launches =
      one_by_one ? double(parameters.size())
                 : std::max(1.0, std::ceil(double(parameters.size()) / model.foreach_tensors));
  const double start = one_by_one ? context.model.memory.start : model.foreach_start;
  return {.us = launches * start + model.foreach_pass * MemoryTime(elements * call.FloatArg(1, 0),
                                                                   context.model.memory),
          .kernels = launches};
}

/// Reads parameters, gradients and both states; writes all but the gradients.
KernelTime Fused(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  double bytes = 0;
  for (std::size_t i = 0; i < call.args(); ++i) {
    for (const Tensor& t : call.TensorsArg(i)) {
      if (t.storage != kElsewhere) bytes += TouchedBytes(*t.layout) * (i == 1 ? 1 : 2);
    }
  }
  const double launches =
      std::max(1.0, std::ceil(double(call.TensorsArg(0).size()) / model.foreach_tensors));
  return {.us = launches * model.foreach_start +
                model.fused_pass * MemoryTime(bytes, context.model.memory),
          .kernels = launches};
}

}  // namespace plimsoll
