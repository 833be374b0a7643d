// Which elements of which parameters each rank of a Sharded has, so that what some ranks saved can
// be loaded by another number of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/parallel/sharded/sharded.h"
#include "train/saving/state_tensors.h"

namespace plimsoll::train {

/// The parameters of each group, in their order, and how many ranks share them.
class ShardedLayout {
 public:
  static ShardedLayout Of(const Sharded& sharded, int ranks);
  static ShardedLayout Take(StateLoader& loader);
  void Add(StateSaver& saver) const;

  int ranks() const { return ranks_; }
  std::size_t groups() const { return groups_.size(); }
  /// Elements that each rank has of a group.
  std::int64_t PartSize(std::size_t group) const;

  bool operator==(const ShardedLayout&) const = default;

  /// Elements that lie one after the other in a part of `from` and in one of this.
  struct Run {
    int rank = 0;
    std::size_t group = 0;
    std::int64_t begin = 0;
    /// In the part of this.
    std::int64_t to = 0;
    std::int64_t count = 0;
  };
  /// What a rank's part of a group consists of, but for what fills it up at the end. Throws
  /// c10::Error if `from` does not have a parameter, or has it with other sizes.
  std::vector<Run> RunsFrom(const ShardedLayout& from, std::size_t group, int rank) const;
  /// The group of `from` that has the first parameter of this group.
  std::size_t GroupIn(const ShardedLayout& from, std::size_t group) const;
  /// Throws c10::Error if another has parameters that are not in this.
  void CheckHasAllOf(const ShardedLayout& other) const;

 private:
  struct Parameter {
    std::string name;
    std::string sizes;
    std::int64_t elements = 0;

    bool operator==(const Parameter&) const = default;
  };
  struct Place {
    std::size_t group = 0;
    /// In all ranks' parts, one after the other.
    std::int64_t begin = 0;
    const Parameter* parameter = nullptr;
  };
  Place Find(const std::string& name) const;

  int ranks_ = 1;
  std::vector<std::vector<Parameter>> groups_;
};

}  // namespace plimsoll::train
