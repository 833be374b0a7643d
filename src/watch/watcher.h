// Puts together what the driver and what the ranks of running jobs say, one sample after another.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "watch/sample.h"

namespace plimsoll {

/// One moment by two clocks, in seconds.
struct WatchTime {
  double since_1970 = 0;
  /// Never set back or forth.
  double steady = 0;
};
WatchTime Now();

class Watcher {
 public:
  WatchSample Take(const WatchTime& now, const std::vector<DriverGpu>& gpus,
                   const std::vector<LiveProcess>& live);
  /// What another machine told, with where it is going by what it told before.
  std::vector<WatchedGpu> Follow(const WatchTime& now, std::vector<WatchedGpu> gpus);

 private:
  using ProcessKey = std::pair<int, std::int64_t>;  // GPU and process

  void AddTrends(double steady, std::vector<WatchedGpu>& gpus);

  std::map<int, Series> gpus_;
  std::map<ProcessKey, Series> processes_;
};

/// "python3 train.py" for process 4321; nothing where it is not to be seen.
std::string ProgramOf(std::int64_t pid);

}  // namespace plimsoll
