// What streams through memory, or between it and the host.
#include "job/time/kernel_rules.h"

#include <algorithm>

#include "job/time/product_time.h"
#include "job/time/traffic.h"

namespace plimsoll {
namespace {

double AtLeast(double bytes, double elements, double ps, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  return memory.start + std::max(MemoryTime(bytes, memory), elements * ps * 1e-6);
}

}  // namespace

KernelTime Pointwise(const Call& call, const TimeContext& context) {
  const Traffic traffic = TrafficOf(call);
  const double ps = traffic.permuted ? context.model.memory.scalar : 0;
  return {.us = AtLeast(traffic.bytes(), traffic.elements, ps, context), .kernels = 1};
}

/// Parts that do not lie in one piece each are gone through element by element.
KernelTime Concatenate(const Call& call, const TimeContext& context) {
  const Traffic traffic = TrafficOf(call);
  const std::vector<Tensor> parts = call.TensorsArg(0);
  const bool dense = std::all_of(parts.begin(), parts.end(), [](const Tensor& t) {
    return t.layout->IsContiguous() || t.layout->IsChannelsLast();
  });
  const double ps = dense ? 0 : context.model.memory.rows;
  return {.us = AtLeast(traffic.bytes(), traffic.elements, ps, context), .kernels = 1};
}

/// To another type or into another order.
KernelTime Copy(const Call& call, const TimeContext& context) {
  const auto from = call.TensorArg(0);
  if (!from || call.results() == 0) return Pointwise(call, context);
  const MemoryModel& memory = context.model.memory;
  const Traffic traffic = TrafficOf(call);
  const bool widens = ElementSize((*from)->dtype) < ElementSize(call.Result(0)->dtype);
  const double ps = traffic.transposed ? memory.reorder
                    : traffic.permuted ? memory.rows
                    : widens           ? memory.widen
                                       : 0;
  return {.us = AtLeast(traffic.bytes(), traffic.elements, ps, context), .kernels = 1};
}

KernelTime CopyInOnePiece(const Layout& layout, const TimeContext& context) {
  if (layout.IsContiguous()) return {};
  const MemoryModel& memory = context.model.memory;
  const bool rows = layout.dims() == 0 || layout.strides.back() == 1;
  const double elements = double(layout.Numel());
  const double bytes = TouchedBytes(layout) + elements * double(ElementSize(layout.dtype));
  return {.us = AtLeast(bytes, elements, rows ? memory.rows : memory.reorder, context),
          .kernels = 1};
}

/// roll(self, shifts, dims): one dimension after the other, each a copy that computes where every
/// element comes from.
KernelTime RollTime(const Call& call, const TimeContext& context) {
  const Traffic traffic = TrafficOf(call);
  const double passes = std::max(1.0, double(call.IntsArg(2).size()));
  return {
      .us = passes * AtLeast(traffic.bytes(), traffic.elements, context.model.memory.roll, context),
      .kernels = passes};
}

/// Writes what does not depend on what it is like.
KernelTime Fill(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  return {.us = memory.start + MemoryTime(TrafficOf(call).written, memory), .kernels = 1};
}

/// A gradient of a view: zeros, and a copy into a part of them.
KernelTime FillAndCopy(const Call& call, const TimeContext& context) {
  KernelTime time = Fill(call, context);
  const MemoryModel& memory = context.model.memory;
  const double elements = ElementsOf(call, 0);
  time += {.us = AtLeast(2 * TrafficOf(call).read, elements, memory.rows, context), .kernels = 1};
  return time;
}

KernelTime Random(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  const Traffic traffic = TrafficOf(call);
  return {.us = memory.start + std::max(MemoryTime(traffic.bytes(), memory),
                                        traffic.elements * memory.random_number * 1e-6),
          .kernels = 1};
}

KernelTime Gather(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  return {.us = memory.start + MemoryTime(2 * TrafficOf(call).written, memory), .kernels = 1};
}

/// scatter_(self, dim, index, src): of `self` only what is written is touched.
KernelTime Scatter(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  const auto index = call.TensorArg(2);
  if (!index) return Pointwise(call, context);
  return {.us = memory.start + MemoryTime(2 * TouchedBytes(**index), memory), .kernels = 1};
}

/// plimsoll.to_host_(tensors), plimsoll.to_device(tensors) and, into what is there, to_device_:
/// between pinned memory and the device, one after the other.
KernelTime HostCopy(const Call& call, const TimeContext& context) {
  double bytes = 0;
  const std::vector<Tensor> tensors = call.TensorsArg(0);
  for (const Tensor& t : tensors) bytes += TouchedBytes(*t.layout);
  return {.us = HostCopyTime(bytes, double(tensors.size()), context),
          .kernels = double(tensors.size())};
}

double HostCopyTime(double bytes, double copies, const TimeContext& context) {
  const OtherModel& other = context.model.other;
  return other.host_copy_start * copies +
         1e6 * bytes / (other.host_copy_share * context.gpu.interconnect.host);
}

}  // namespace plimsoll
