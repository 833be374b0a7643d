// What `plimsoll plan --json` found, as far as a trainer can do it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/trainer/trainer.h"

namespace plimsoll::train {

/// One way of a plan. What is not set is left to the trainer.
struct PlannedWay {
  /// Samples that one step of the optimizer learns from, on all ranks together.
  std::int64_t batch = 0;
  /// How many ranks there must be.
  int ranks = 1;
  /// Ranks of one pipeline, and parts of each; 1: none.
  int stages = 1;
  int chunks = 1;
  std::optional<Shard> shard;
  /// Parameters are of this type for the model, where they are sharded.
  std::optional<at::ScalarType> compute_dtype;
  std::int64_t micro_batch = 0;
  std::optional<CheckpointPolicy> checkpoint;
  std::optional<bool> offload;
  std::optional<bool> chunked_loss;
  std::optional<Precision> precision;
  std::optional<OptimizerForm> optimizer;
  /// What the plan asks for beside that, in its own words.
  std::vector<std::string> left_out;

  /// Sets what of it are options of a trainer. Making ranks, pipeline and optimizer is the
  /// caller's.
  void Set(TrainerOptions& options) const;
};

/// Way number `way`, from 0 on, the fastest first. Throws c10::Error, one sentence that names the
/// file, for one that is no plan or has no such way.
PlannedWay ReadPlan(const std::filesystem::path& path, int way = 0);

}  // namespace plimsoll::train
