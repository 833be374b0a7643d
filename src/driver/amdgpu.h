// What AMD's driver says of its GPUs, in the files that it keeps under /sys: the same figures that
// amd-smi shows, without its library, whose structs differ from release to release.
#pragma once

#include <filesystem>
#include <vector>

#include "base/result.h"
#include "driver/driver_gpu.h"

namespace plimsoll {

class AmdGpus {
 public:
  /// Under $PLIMSOLL_SYSFS, else /sys. Fails where the driver has no GPU there.
  static Result<AmdGpus> Find();

  /// Every GPU as it is now, in the order of the driver's own list.
  std::vector<DriverGpu> Read() const;

 private:
  /// A GPU that computes: where its figures are, and its number among those of processes.
  struct Place {
    std::filesystem::path device;
    std::uint64_t id = 0;
  };
  explicit AmdGpus(std::filesystem::path root) : root_(std::move(root)) {}

  DriverGpu Read(const Place& place, int index) const;
  std::vector<DriverProcess> ProcessesOf(std::uint64_t id) const;

  std::filesystem::path root_;
  std::vector<Place> places_;
};

}  // namespace plimsoll
