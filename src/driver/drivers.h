// The drivers of this machine together.
#pragma once

#include <optional>
#include <vector>

#include "driver/amdgpu.h"
#include "driver/nvml.h"

namespace plimsoll {

class Drivers {
 public:
  /// NVIDIA's, AMD's or both; where there is neither, what NVIDIA's says.
  static Result<Drivers> Load();

  /// Every GPU as it is now; AMD's are counted on from NVIDIA's.
  std::vector<DriverGpu> Read() const;

 private:
  std::optional<Nvml> nvidia_;
  std::optional<AmdGpus> amd_;
};

}  // namespace plimsoll
