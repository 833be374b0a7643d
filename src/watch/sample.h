// Every GPU and its processes at one moment, with where they are going: what `plimsoll watch`
// shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "driver/driver_gpu.h"
#include "launch/live.h"
#include "watch/trend.h"

namespace plimsoll {

struct WatchedProcess {
  std::int64_t pid = 0;
  /// The program, and the script where it runs one; empty where it cannot be seen from here.
  std::string program = {};
  /// As the driver says: tensors, cache, and what CUDA itself takes.
  std::optional<Bytes> used = {};
  /// Under `plimsoll run`, as PyTorch in that process said last.
  std::optional<LiveDevice> reported = {};
  std::optional<int> rank = {};
  std::optional<std::int64_t> optimizer_steps = {};
  std::optional<Bytes> budget = {};
  /// Of the host's memory, with its loader's workers and whatever else it started.
  std::optional<LiveHost> host = {};
  /// Of that memory, what PyTorch has page-locked.
  std::optional<Bytes> pinned = {};
  /// How long ago it reported.
  double age = 0;
  /// Of `used`, else of what it reports as reserved.
  Trend trend = {};
  /// Only where it has a budget of its own.
  std::optional<double> seconds_until_budget = {};
};

struct WatchedGpu {
  int index = 0;
  std::string name = {};
  std::string uuid = {};
  std::optional<DriverMemory> memory = {};
  std::string failure = {};
  std::optional<int> busy = {};
  Trend trend = {};
  std::optional<double> seconds_until_full = {};
  std::vector<WatchedProcess> processes = {};
};

/// Another machine, as it tells of itself.
struct WatchedMachine {
  /// "node1:9835", as it is asked.
  std::string name = {};
  /// Why there are no figures of it; empty where there are.
  std::string failure = {};
  std::vector<WatchedGpu> gpus = {};
};

struct WatchSample {
  /// Seconds since 1970.
  double time = 0;
  /// Of this machine.
  std::vector<WatchedGpu> gpus = {};
  /// Where others are asked instead, in the order in which they were named.
  std::vector<WatchedMachine> machines = {};
};

}  // namespace plimsoll
