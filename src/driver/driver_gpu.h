// What a driver says of a GPU, whoever made it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

struct DriverProcess {
  std::int64_t pid = 0;
  /// Not told under Windows' driver model, and in some virtual machines.
  std::optional<Bytes> used = {};
};

struct DriverMemory {
  Bytes total = 0;
  Bytes used = 0;
  Bytes free = 0;
  /// What the driver keeps for itself. Older drivers count it as used and do not tell it.
  std::optional<Bytes> driver = {};
};

struct DriverGpu {
  int index = 0;
  std::string name = {};
  std::string uuid = {};
  /// None, where `failure` says why.
  std::optional<DriverMemory> memory = {};
  std::string failure = {};
  /// Percent of the last moments in which some kernel ran.
  std::optional<int> busy = {};
  std::vector<DriverProcess> processes = {};
};

}  // namespace plimsoll
