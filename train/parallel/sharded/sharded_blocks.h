// Which parameters of a sharded model belong to which block, so that they are there while it is
// computed and not longer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "train/checkpointing/checkpoint_policy.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/sharded/flat_group.h"
#include "train/parallel/sharded/sharded_options.h"

namespace plimsoll::train {

/// The groups of a model. Told of the blocks of a forward (WatchBlocks), it gathers the parameters
/// of each for it, releases them after it, and has them gathered again when backward comes to the
/// block's result.
class ShardedBlocks : public BlockWatcher {
 public:
  /// The parameters become those of rank 0, as the buffers do, and views of the groups. The ranks
  /// must outlive it, and it the backward of what it has watched.
  ShardedBlocks(torch::nn::Module& model, Ranks& ranks, const ShardedOptions& options);

  const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return groups_; }
  /// Of the parameters of each group.
  const std::vector<int>& kinds() const { return kinds_; }

  void GatherAll();
  /// What is in no block.
  void GatherOutside() { Gather({}); }
  void ReleaseAll();

  void Enter(const Checkpointable& module, CheckpointPolicy::Range blocks, bool in_chain) override;
  void Leave(const Checkpointable& module, CheckpointPolicy::Range blocks,
             const at::Tensor& result) override;

 private:
  /// A Checkpointable and the number of its block; null: what is in no block.
  using BlockKey = std::pair<const Checkpointable*, int>;

  void AddGroups(const BlockKey& block, std::vector<at::Tensor> parameters, Ranks& ranks,
                 const ShardedOptions& options);
  /// None where a module has no such block, as before its first and after its last.
  const std::vector<std::size_t>& GroupsOf(const BlockKey& block) const;
  void Gather(const BlockKey& block);
  void BeginGather(const BlockKey& block);
  void Release(const BlockKey& block);

  bool ahead_;
  std::vector<std::unique_ptr<FlatGroup>> groups_;
  std::vector<int> kinds_;
  std::map<BlockKey, std::vector<std::size_t>> groups_of_;
};

}  // namespace plimsoll::train
