#include "job/parallel/sharded_variant.h"

#include <fmt/format.h>

#include <utility>

namespace plimsoll {
namespace {

Bytes CastBytes(const MixedPrecision& policy, Bytes bytes, DType to) {
  return bytes / ElementSize(policy.param) * ElementSize(to);
}

}  // namespace

ShardedVariant::ShardedVariant(Job& whole, const Variant& captured, const Sharding& how)
    : job(whole),
      old(captured),
      sharding(how),
      groups(ShardGroups::AsSharded(whole, captured).Without(captured, how.left_out)),
      layouts(whole, captured, how),
      edit(whole, captured, "plimsoll.fully_sharded") {
  edit.LeaveOutLater();
}

std::size_t ShardedVariant::GroupOf(const CallRecord& call) const {
  return groups.Of(job.strings[call.module]);
}

const std::vector<std::uint32_t>& ShardedVariant::ParametersOf(std::size_t group) const {
  return groups.all()[group].parameters;
}

Bytes ShardedVariant::AsKept(Bytes bytes) const {
  return sharding.policy ? CastBytes(*sharding.policy, bytes, DType::kFloat32) : bytes;
}

Bytes ShardedVariant::AsReduced(Bytes bytes) const {
  return sharding.policy ? CastBytes(*sharding.policy, bytes, sharding.policy->reduce) : bytes;
}

Storage ShardedVariant::Make(std::string_view what, Bytes bytes, ShardStream stream,
                             Category category) {
  return edit.Make(fmt::format("fully_shard: {}", what), bytes, category,
                   static_cast<std::uint8_t>(stream));
}

Storage ShardedVariant::MakeBy(Collective::Kind kind, Bytes bytes, std::string_view what,
                               Bytes made, ShardStream stream, Category category) {
  if (made <= 0) return kElsewhere;
  // Shards can be gathered at any time, gradients are reduced when they are there.
  const bool early = kind == Collective::Kind::kAllGather;
  CallRecord call = CallOf(
      job,
      {.kind = kind, .bytes = {bytes, bytes}, .ranks = sharding.ranks, .apart = sharding.apart},
      early);
  call.where = job.strings.Intern(fmt::format("fully_shard: {}", what));
  call.stream = static_cast<std::uint8_t>(stream);
  const Storage storage = edit.NewStorageNumber();
  call.fresh.push_back({.storage = storage, .bytes = {made, made}});
  edit.Call(std::move(call));
  edit.Label(storage, category);
  return storage;
}

void ShardedVariant::CopyByGloo(Bytes bytes, ShardStream stream) {
  if (job.backend != Backend::kGloo) return;
  edit.Free(Make("gloo's copy", bytes, stream, Category::kTemporaries));
}

}  // namespace plimsoll
