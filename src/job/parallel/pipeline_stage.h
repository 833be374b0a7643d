// What one GPU of a pipeline does of each captured step, taken apart by chunk.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "job/file/job.h"
#include "job/parallel/pipeline.h"
#include "job/transforms/shard_groups.h"

namespace plimsoll {

/// One thing that a chunk does: an event of the capture, or a tensor that comes or goes.
struct StageItem {
  enum class Kind : std::uint8_t { kEvent, kReceive, kSend };
  Kind kind = Kind::kEvent;
  /// Into the variant's events; of what is received, the how-manieth it is of its turn.
  std::size_t event = 0;
  /// What is received or sent.
  Storage storage = kElsewhere;
  Number bytes;
};

/// From the inputs of a step to the end of its backward.
struct StagePass {
  std::size_t begin = 0;
  std::size_t end = 0;
  /// By chunk.
  std::vector<std::vector<StageItem>> forward, backward;
  /// Storages of earlier steps that are let go in it.
  std::vector<Storage> let_go;
};

struct PipelineStage {
  std::vector<StagePass> passes;
  /// Parameters and buffers that it reads.
  std::set<Storage> model;
  /// What its forwards hand on.
  std::set<Storage> outputs;
};

/// The variant has one pass a step, and at least as many blocks as there are pieces.
PipelineStage TakeApart(const Job& job, const Variant& variant, const Pipeline& pipeline,
                        int stage);

}  // namespace plimsoll
