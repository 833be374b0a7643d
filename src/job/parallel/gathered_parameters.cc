#include "job/parallel/gathered_parameters.h"

#include <utility>

namespace plimsoll {
namespace {

Bytes GatheredBytes(const ShardedVariant& variant, std::size_t group) {
  Bytes sum = 0;
  for (const std::uint32_t p : variant.ParametersOf(group)) {
    sum += variant.layouts.PaddedBytes(variant.old.model_tensors[p]);
  }
  return sum;
}

}  // namespace

void GatheredParameters::Gather(std::size_t group) {
  Group& of = groups_[group];
  if (of.gathered != kElsewhere || !of.whole.empty()) return;
  const Bytes bytes = GatheredBytes(variant_, group);
  Storage cast = kElsewhere;
  if (variant_.sharding.policy) {
    cast = variant_.Make("shards, cast", bytes / variant_.sharding.ranks, ShardStream::kGather,
                         Category::kTemporaries);
  }
  of.gathered = variant_.MakeBy(Collective::Kind::kAllGather, bytes, "all-gather", bytes,
                                ShardStream::kGather, Category::kTemporaries);
  variant_.CopyByGloo(bytes, ShardStream::kAskToGather);
  variant_.edit.Free(cast);
}

void GatheredParameters::Unshard(std::size_t group) {
  Group& of = groups_[group];
  if (!of.whole.empty()) return;
  Gather(group);
  if (of.gathered != kElsewhere) variant_.edit.Call(WaitCall(variant_.job, of.gathered));
  for (const std::uint32_t p : variant_.ParametersOf(group)) {
    const Bytes bytes = variant_.layouts.PaddedBytes(variant_.old.model_tensors[p]);
    of.whole.push_back(
        variant_.Make("parameters, gathered", bytes, ShardStream::kCompute, Category::kParameters));
  }
}

void GatheredParameters::UnshardInForward(std::size_t group) {
  Unshard(group);
  variant_.edit.FreeNow(lingering_);
  lingering_ = std::exchange(groups_[group].gathered, kElsewhere);
}

void GatheredParameters::UnshardInBackward(std::size_t group) {
  Unshard(group);
  variant_.edit.FreeNow(groups_[group].gathered);
}

void GatheredParameters::Reshard(std::size_t group) {
  for (const Storage storage : std::exchange(groups_[group].whole, {})) variant_.edit.Free(storage);
}

void GatheredParameters::EndForward() { variant_.edit.FreeNow(lingering_); }

void GatheredParameters::EndBackward() {
  for (Group& group : groups_) variant_.edit.FreeNow(group.gathered);
}

}  // namespace plimsoll
