// What is alive in the course of one forward and backward, from block to block.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "train/budget/budget.h"
#include "train/checkpointing/checkpoint_policy.h"
#include "train/planning/forward_work.h"

namespace plimsoll::train {

/// The blocks of all checkpointable modules of a model, numbered through.
class ModelBlocks {
 public:
  explicit ModelBlocks(torch::nn::Module& model);

  int size() const { return size_; }
  int NumberOf(const Checkpointable& module, int block) const;
  /// Gives each module its part.
  void Use(const CheckpointPolicy& policy) const;

 private:
  std::map<const Checkpointable*, int> first_;
  /// With the number of their blocks.
  std::vector<std::pair<Checkpointable*, int>> modules_;
  int size_ = 0;
};

/// Once a block in forward.
struct BlockRun {
  int block = 0;
  /// How many blocks it is within.
  int depth = 0;
  bool in_chain = false;
  /// Indices of marks: forward comes to it and leaves it, backward comes to it. The last is nothing
  /// where backward does not.
  std::size_t enter = 0;
  std::size_t leave = 0;
  std::optional<std::size_t> backward;
};

struct StepRecord {
  struct Mark {
    /// Allocated then, and the most until the next mark.
    Bytes alive = 0;
    Bytes peak = 0;
    /// So far; the work of the backward is not in it.
    ForwardWork work;
  };
  std::vector<Mark> marks;
  std::vector<BlockRun> runs;

  /// Whether both went through the same blocks in the same order.
  bool Follows(const StepRecord& other) const;
  bool HasBlocksWithinBlocks() const;
  /// Each block by itself, but not those within others.
  CheckpointPolicy OutermostAlone() const;
};

/// RAII guard: records what happens on this thread and in the backward that belongs to it.
class StepRecorder final : public BlockWatcher {
 public:
  StepRecorder(Budget& budget, const ModelBlocks& blocks);

  StepRecord Finish();

  void Enter(const Checkpointable& module, CheckpointPolicy::Range blocks, bool in_chain) override;
  void Leave(const Checkpointable& module, CheckpointPolicy::Range blocks,
             const at::Tensor& result) override;

 private:
  std::size_t Mark();

  Budget& budget_;
  const ModelBlocks& blocks_;
  /// Backward runs on threads of its own.
  std::mutex mutex_;
  StepRecord record_;
  /// Indices of runs that were entered and not left.
  std::vector<std::size_t> open_;
  MemoryTraffic first_;
  FlopCounter flops_;
  WatchBlocks watch_;
};

}  // namespace plimsoll::train
