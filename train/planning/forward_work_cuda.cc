#include <cuda_runtime_api.h>

#include "train/planning/forward_work.h"

namespace plimsoll::train {

DeviceRates CudaRatesOf(c10::DeviceIndex index) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    TORCH_CHECK(cudaDeviceGetAttribute(&value, which, index) == cudaSuccess, "no CUDA device ",
                int(index));
    return static_cast<double>(value);
  };
  // 128 lanes in each multiprocessor, two operations an instruction; tensor cores are about 16
  // times as fast and reach about half of it. Clocks are in kHz, widths in bits.
  const double megahertz = attribute(cudaDevAttrClockRate) / 1e3;
  const double flops = attribute(cudaDevAttrMultiProcessorCount) * 128 * 2 * megahertz;
  const double bytes = attribute(cudaDevAttrMemoryClockRate) / 1e3 * 2 *
                       attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  // Of a launch, where small kernels do not hide it.
  return {.flops = flops, .half_flops = 8 * flops, .bytes = bytes, .per_request = 4};
}

}  // namespace plimsoll::train
