// In which order a GPU of a pipeline goes through its micro-batches.
#pragma once

#include <vector>

#include "job/parallel/pipeline.h"

namespace plimsoll {

/// A forward or a backward of one micro-batch through one of the GPU's chunks.
struct PipelineTurn {
  bool backward = false;
  int chunk = 0;
  int micro_batch = 0;

  bool operator==(const PipelineTurn&) const = default;
};

/// 1F1B: as many forwards at first as there are stages from this one on, then backward and forward
/// in turn. Interleaved: the same over chunks, as Megatron-LM orders them.
std::vector<PipelineTurn> ScheduleOf(const Pipeline& pipeline, int stage);

}  // namespace plimsoll
