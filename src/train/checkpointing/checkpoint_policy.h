// Which parts of a model are checkpointed.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpointing/checkpoint.h"

namespace plimsoll::train {

/// Over a chain of `blocks` parts of a model, or over parts that stand alone.
class CheckpointPolicy {
 public:
  /// Nothing is checkpointed.
  CheckpointPolicy() = default;
  static CheckpointPolicy All() { return Every(1); }
  /// Blocks together by k's: only what goes into each group is kept.
  static CheckpointPolicy Every(int k);
  /// Groups of the square root of the number of blocks, which keeps least in one level.
  static CheckpointPolicy SquareRoot();
  /// These blocks, each alone.
  static CheckpointPolicy Plan(std::set<int> blocks);
  /// "none", "all", "every:4", "sqrt", "plan:0,2,5".
  static CheckpointPolicy Parse(std::string_view text);

  std::string ToString() const;

  struct Group {
    int begin = 0;
    int end = 0;
    bool checkpointed = false;
  };
  /// Consecutive groups that cover all blocks.
  std::vector<Group> Groups(int blocks) const;
  /// For a block that stands alone: groups have no meaning for it.
  bool Covers(int block) const;

 private:
  enum class Kind { kNone, kEvery, kSquareRoot, kPlan };

  Kind kind_ = Kind::kNone;
  int every_ = 1;
  std::set<int> plan_;
};

/// A module whose parts can be checkpointed. Trainer finds it among a model's modules.
class Checkpointable {
 public:
  virtual ~Checkpointable() = default;
  virtual int checkpoint_blocks() const = 0;

  const CheckpointPolicy& checkpoint_policy() const { return policy_; }
  void set_checkpoint_policy(CheckpointPolicy policy) { policy_ = std::move(policy); }

 protected:
  using Block = std::function<at::Tensor(const at::Tensor&)>;
  /// One block after the other, in groups as the policy says.
  at::Tensor RunChain(const std::vector<Block>& blocks, at::Tensor x) const;
  /// One block that stands alone.
  template <class Function, class... Inputs>
  at::Tensor RunBlock(int block, Function function, const Inputs&... inputs) const {
    if (!policy_.Covers(block)) return function(inputs...);
    return CheckpointOne(std::move(function), inputs...);
  }

 private:
  CheckpointPolicy policy_;
};

}  // namespace plimsoll::train
