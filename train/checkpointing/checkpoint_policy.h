// Which parts of a model are checkpointed.
#pragma once

#include <functional>
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
  /// Blocks [begin, end), computed again together.
  struct Range {
    int begin = 0;
    int end = 0;

    bool operator==(const Range&) const = default;
  };
  /// These, which must not overlap, in any order.
  static CheckpointPolicy Plan(std::vector<Range> ranges);
  /// "none", "all", "every:4", "sqrt", "plan:0,2-4,7": blocks 2 to 4 together.
  static CheckpointPolicy Parse(std::string_view text);

  std::string ToString() const;
  bool operator==(const CheckpointPolicy&) const = default;

  struct Group {
    int begin = 0;
    int end = 0;
    bool checkpointed = false;
  };
  /// Consecutive groups that cover all blocks.
  std::vector<Group> Groups(int blocks) const;
  /// For a block that stands alone: groups have no meaning for it.
  bool Covers(int block) const;
  /// Whether exactly these blocks are computed again together, in a chain of `blocks`.
  bool HasGroup(Range range, int blocks) const;
  /// The last block that it names; -1 where it names none.
  int last() const { return plan_.empty() ? -1 : plan_.back().end - 1; }
  /// What it says of the blocks [begin, begin + blocks), which count from 0 then.
  CheckpointPolicy Part(int begin, int blocks) const;

 private:
  enum class Kind { kNone, kEvery, kSquareRoot, kPlan };

  Kind kind_ = Kind::kNone;
  int every_ = 1;
  /// In order.
  std::vector<Range> plan_;
};

class Checkpointable;

/// Is told of each block of a forward on this thread, also of blocks within blocks, and not of
/// those that are computed again.
class BlockWatcher {
 public:
  virtual ~BlockWatcher() = default;
  /// `in_chain`: it begins with the result of the block before it.
  /// `blocks`: one, or several that are run as one.
  virtual void Enter(const Checkpointable& module, CheckpointPolicy::Range blocks,
                     bool in_chain) = 0;
  virtual void Leave(const Checkpointable& module, CheckpointPolicy::Range blocks,
                     const at::Tensor& result) = 0;
};

/// RAII guard: blocks that run on this thread tell the watcher.
class WatchBlocks {
 public:
  explicit WatchBlocks(BlockWatcher& watcher);
  ~WatchBlocks();
  WatchBlocks(const WatchBlocks&) = delete;
  WatchBlocks& operator=(const WatchBlocks&) = delete;

 private:
  BlockWatcher* outer_;
};

/// A module whose parts can be checkpointed: derive from it beside torch::nn::Module, say how many
/// blocks there are, and run them through RunChain or RunBlock. Trainer finds it among a model's
/// modules and sets the policy. A block may be such a module in turn: where a block alone is too
/// large, the blocks within it are checkpointed too.
class Checkpointable {
 public:
  virtual ~Checkpointable() = default;
  virtual int checkpoint_blocks() const = 0;

  const CheckpointPolicy& checkpoint_policy() const { return policy_; }
  void set_checkpoint_policy(CheckpointPolicy policy) { policy_ = std::move(policy); }

 protected:
  using Block = std::function<at::Tensor(const at::Tensor&)>;
  /// All blocks, one after the other, in groups as the policy says.
  at::Tensor RunChain(const std::vector<Block>& blocks, at::Tensor x) const;
  /// A chain of some of them, of which `first` is the number of the first one: for a module with
  /// several chains, whose numbers go on from one to the next, or with blocks beside its chain.
  at::Tensor RunChain(int first, const std::vector<Block>& blocks, at::Tensor x) const;
  /// Block number `block`, which stands alone: `function` of tensors, with a tensor as its result.
  template <class Function, class... Inputs>
  at::Tensor RunBlock(int block, Function function, const Inputs&... inputs) const {
    CheckNumbers(block, 1);
    Enter({block, block + 1}, /*in_chain=*/false);
    at::Tensor result =
        policy_.Covers(block) ? CheckpointOne(std::move(function), inputs...) : function(inputs...);
    Leave({block, block + 1}, result);
    return result;
  }

 private:
  /// That the module has these blocks.
  void CheckNumbers(int first, int blocks) const;
  void Enter(CheckpointPolicy::Range blocks, bool in_chain) const;
  void Leave(CheckpointPolicy::Range blocks, const at::Tensor& result) const;

  CheckpointPolicy policy_;
};

}  // namespace plimsoll::train
