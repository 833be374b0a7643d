// How much a part of a forward computes, counted and never timed, so that the same program comes to
// the same figures every time.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include "base/bytes.h"

namespace plimsoll::train {

struct ForwardWork {
  /// Multiplications and additions of matrix products, convolutions and attention; those with
  /// operands of 16 bits apart.
  double flops = 0;
  double half_flops = 0;
  /// Memory that was taken: about what is written.
  Bytes made = 0;
  /// Requests for memory: about as many as kernels.
  std::int64_t requests = 0;

  ForwardWork operator-(const ForwardWork& earlier) const;
};

/// What a device does in a microsecond, by its data sheet and not by measuring: for comparing one
/// way to train with another.
struct DeviceRates {
  double flops = 1;
  double half_flops = 1;
  double bytes = 1;
  /// Of each request, in microseconds.
  double per_request = 0;
};
DeviceRates RatesOf(c10::Device device);
/// Fails where this is built without CUDA.
DeviceRates CudaRatesOf(c10::DeviceIndex index);

double Microseconds(const ForwardWork& work, const DeviceRates& rates);

/// RAII guard: counts on this thread; one at a time.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  double flops() const { return flops_; }
  double half_flops() const { return half_flops_; }

 private:
  static std::unique_ptr<at::ObserverContext> Count(const at::RecordFunction& call);

  double flops_ = 0;
  double half_flops_ = 0;
  at::CallbackHandle handle_ = 0;
};

}  // namespace plimsoll::train
