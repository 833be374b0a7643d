// The whole parameters of each group on a rank: gathered from all shards for a forward or a
// backward, and let go.
#pragma once

#include <vector>

#include "job/parallel/sharded_variant.h"

namespace plimsoll {

class GatheredParameters {
 public:
  explicit GatheredParameters(ShardedVariant& variant)
      : variant_(variant), groups_(variant.groups.all().size()) {}

  bool IsWhole(std::size_t group) const { return !groups_[group].whole.empty(); }

  /// Into one buffer; nothing where that or the whole parameters are there.
  void Gather(std::size_t group);
  /// Gathers what is not, and copies it into whole parameters. In a forward the buffer stays until
  /// the next group has its own copies, so that copying and gathering overlap.
  void UnshardInForward(std::size_t group);
  void UnshardInBackward(std::size_t group);
  /// Lets the whole parameters go.
  void Reshard(std::size_t group);

  /// What the last group was copied from goes.
  void EndForward();
  /// What was gathered and not used goes.
  void EndBackward();

 private:
  /// kElsewhere for what is not on the device.
  struct Group {
    Storage gathered = kElsewhere;
    std::vector<Storage> whole;
  };

  void Unshard(std::size_t group);

  ShardedVariant& variant_;
  std::vector<Group> groups_;
  /// The buffer from which the last group of a forward was copied.
  Storage lingering_ = kElsewhere;
};

}  // namespace plimsoll
