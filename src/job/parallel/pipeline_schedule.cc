#include "job/parallel/pipeline_schedule.h"

#include <algorithm>

namespace plimsoll {

std::vector<PipelineTurn> ScheduleOf(const Pipeline& pipeline, int stage) {
  const int stages = pipeline.stages;
  const int chunks = pipeline.chunks;
  const int all = pipeline.micro_batches * chunks;
  // Micro-batches go through the chunks in rounds of as many as there are stages.
  const auto turn = [&](int n, bool backward) -> PipelineTurn {
    if (chunks == 1) return {.backward = backward, .chunk = 0, .micro_batch = n};
    const int chunk = n / stages % chunks;
    return {.backward = backward,
            .chunk = backward ? chunks - 1 - chunk : chunk,
            .micro_batch = n / (stages * chunks) * stages + n % stages};
  };
  const int later = stages - stage - 1;
  const int ahead = std::min(all, chunks == 1 ? later : 2 * later + (chunks - 1) * stages);
  std::vector<PipelineTurn> turns;
  for (int n = 0; n < ahead; ++n) turns.push_back(turn(n, false));
  for (int n = ahead; n < all; ++n) {
    turns.push_back(turn(n, false));
    turns.push_back(turn(n - ahead, true));
  }
  for (int n = all - ahead; n < all; ++n) turns.push_back(turn(n, true));
  return turns;
}

}  // namespace plimsoll
