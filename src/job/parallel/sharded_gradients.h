// The gradients of each group on a rank: whole as a backward makes them, then reduced into a shard.
#pragma once

#include <map>
#include <vector>

#include "job/parallel/sharded_variant.h"

namespace plimsoll {

class ShardedGradients {
 public:
  explicit ShardedGradients(ShardedVariant& variant);

  /// Whether the captured job has a gradient in this storage.
  bool Has(Storage storage) const { return captured_.contains(storage); }

  /// Whole gradients, as a call of the backward made them.
  void Note(const CallRecord& call);
  /// Whole gradients that wait for those of further micro-batches do so in the type of the
  /// reduction.
  void Hold(std::size_t group);
  /// Copies what the group has of them into one buffer, which stays until the next group's, and
  /// reduces that into the shard.
  void Reduce(std::size_t group);
  /// The buffer of the last reduction goes.
  void EndBackward();

  /// The captured job frees a storage, a gradient perhaps.
  void Free(const JobEvent& event);

 private:
  struct Captured {
    std::size_t group = ShardGroups::kRoot;
    Bytes bytes = 0;
  };
  struct Group {
    /// Made in this backward and not reduced yet.
    std::vector<Storage> whole;
    /// What further micro-batches add to those that wait.
    std::vector<Storage> added;
    /// The reduced gradients, and how many of the captured ones stand for them.
    Storage shard = kElsewhere;
    int stand_for_shard = 0;
  };

  Storage MakeShard(Bytes whole);
  /// The storage that has a captured gradient now.
  Storage NowOf(Storage gradient) const;
  Storage OfLastParameter(std::size_t group) const;

  ShardedVariant& variant_;
  std::vector<Group> groups_;
  /// By captured storage.
  std::map<Storage, Captured> captured_;
  /// Of what is added: the group.
  std::map<Storage, std::size_t> adding_;
  /// Those that were widened: the storages that have them.
  std::map<Storage, Storage> widened_;
  /// Those that are in a shard: their group.
  std::map<Storage, std::size_t> reduced_;
  /// The buffer of the last reduction.
  Storage reducing_ = kElsewhere;
};

}  // namespace plimsoll
