#include "driver/drivers.h"

#include <utility>

namespace plimsoll {

Result<Drivers> Drivers::Load() {
  Drivers drivers;
  Result<Nvml> nvidia = Nvml::Load();
  if (nvidia) drivers.nvidia_.emplace(*std::move(nvidia));
  Result<AmdGpus> amd = AmdGpus::Find();
  if (amd) drivers.amd_.emplace(*std::move(amd));
  if (!nvidia && !amd) return nvidia.error();
  return drivers;
}

std::vector<DriverGpu> Drivers::Read() const {
  std::vector<DriverGpu> gpus;
  if (nvidia_) gpus = nvidia_->Read();
  if (!amd_) return gpus;
  for (DriverGpu& gpu : amd_->Read()) {
    gpu.index = static_cast<int>(gpus.size());
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace plimsoll
