// What another machine answers when it is asked for its metrics: whatever comes becomes GPUs that
// can be shown, or one line.
#include "watch/metrics_text.h"

#include "fuzz.h"
#include "report/watch.h"
#include "watch/watcher.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const std::string text(reinterpret_cast<const char*>(data), size);
  Result<std::vector<WatchedGpu>> gpus = ReadMetrics(text);
  if (!gpus) {
    CheckError(gpus.error());
    return 0;
  }
  Watcher watcher;
  for (const double second : {1.0, 2.0}) {
    WatchSample sample{.time = second};
    sample.machines.push_back(
        {.name = "fuzz", .gpus = watcher.Follow({.since_1970 = second, .steady = second}, *gpus)});
    PLIMSOLL_CHECK(!WatchText(sample, true, TextStyle{}).empty());
    PLIMSOLL_CHECK(!WatchJson(sample).empty());
    PLIMSOLL_CHECK(ReadMetrics(WatchMetrics({.gpus = sample.machines[0].gpus})).ok());
  }
  return 0;
}
