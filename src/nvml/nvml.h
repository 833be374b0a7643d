// What NVIDIA's driver says of its GPUs, through its management library (NVML), which is loaded at
// run time: nothing of NVIDIA's is needed to build this, or to start on a machine without a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace plimsoll {

struct NvmlProcess {
  std::int64_t pid = 0;
  /// Not told under Windows' driver model, and in some virtual machines.
  std::optional<Bytes> used = {};
};

struct NvmlMemory {
  Bytes total = 0;
  Bytes used = 0;
  Bytes free = 0;
  /// What the driver keeps for itself. Older drivers count it as used and do not tell it.
  std::optional<Bytes> driver = {};
};

struct NvmlGpu {
  int index = 0;
  std::string name = {};
  std::string uuid = {};
  /// None, where `failure` says why.
  std::optional<NvmlMemory> memory = {};
  std::string failure = {};
  /// Percent of the last moments in which some kernel ran.
  std::optional<int> busy = {};
  std::vector<NvmlProcess> processes = {};
};

class Nvml {
 public:
  /// The library of $PLIMSOLL_NVML, else the driver's. Fails where there is no driver or no GPU.
  static Result<Nvml> Load();
  ~Nvml();
  Nvml(Nvml&&) noexcept;
  Nvml& operator=(Nvml&&) noexcept;

  /// Every GPU as it is now.
  std::vector<NvmlGpu> Read() const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace plimsoll
