// What NVIDIA's driver says of its GPUs, through its management library (NVML), which is loaded at
// run time: nothing of NVIDIA's is needed to build this, or to start on a machine without a GPU.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "driver/driver_gpu.h"

namespace plimsoll {

class Nvml {
 public:
  /// The library of $PLIMSOLL_NVML, else the driver's. Fails where there is no driver or no GPU.
  static Result<Nvml> Load();
  ~Nvml();
  Nvml(Nvml&&) noexcept;
  Nvml& operator=(Nvml&&) noexcept;

  /// Every GPU as it is now.
  std::vector<DriverGpu> Read() const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace plimsoll
