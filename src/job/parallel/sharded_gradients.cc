#include "job/parallel/sharded_gradients.h"

#include <algorithm>
#include <utility>

namespace plimsoll {
namespace {

Bytes GradientBytes(const ShardedVariant& variant, std::size_t group) {
  Bytes sum = 0;
  for (const std::uint32_t p : variant.ParametersOf(group)) {
    const ModelTensor& tensor = variant.old.model_tensors[p];
    if (tensor.trainable) sum += variant.layouts.PaddedBytes(tensor);
  }
  return sum;
}

}  // namespace

ShardedGradients::ShardedGradients(ShardedVariant& variant)
    : variant_(variant), groups_(variant.groups.all().size()) {
  for (const JobEvent& event : variant.old.events) {
    if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients &&
        !variant.sharding.left_out.contains(event.index)) {
      captured_[event.index] = {};
    }
  }
  for (const CallRecord& call : variant.old.calls) {
    for (const NewStorage& fresh : call.fresh) {
      const auto gradient = captured_.find(fresh.storage);
      if (gradient == captured_.end()) continue;
      gradient->second = {.group = variant.GroupOf(call), .bytes = fresh.bytes.least()};
    }
  }
}

void ShardedGradients::Note(const CallRecord& call) {
  const auto* sum = call.args.size() < 2 ? nullptr : std::get_if<TensorUse>(&call.args[0].is);
  const auto* part = call.args.size() < 2 ? nullptr : std::get_if<TensorUse>(&call.args[1].is);
  if (sum != nullptr && part != nullptr && widened_.contains(sum->storage)) {
    adding_[part->storage] = captured_.at(sum->storage).group;
  }
  for (const NewStorage& fresh : call.fresh) {
    const auto gradient = captured_.find(fresh.storage);
    if (gradient == captured_.end()) continue;
    groups_[gradient->second.group].whole.push_back(fresh.storage);
    variant_.edit.Label(fresh.storage, Category::kGradients);
  }
}

void ShardedGradients::Hold(std::size_t group) {
  for (const Storage part : std::exchange(groups_[group].added, {})) variant_.edit.Free(part);
  for (const Storage gradient : groups_[group].whole) {
    const Bytes bytes = captured_.at(gradient).bytes;
    if (variant_.AsReduced(bytes) == bytes || widened_.contains(gradient)) continue;
    widened_[gradient] = variant_.Make("gradients, added up", variant_.AsReduced(bytes),
                                       ShardStream::kCompute, Category::kGradients);
    variant_.edit.Free(gradient);
  }
}

Storage ShardedGradients::NowOf(Storage gradient) const {
  const auto widened = widened_.find(gradient);
  return widened == widened_.end() ? gradient : widened->second;
}

void ShardedGradients::Reduce(std::size_t group) {
  variant_.edit.FreeNow(reducing_);
  const Bytes bytes = GradientBytes(variant_, group);
  if (bytes == 0) return;
  reducing_ = variant_.Make("reduce-scatter", variant_.AsReduced(bytes), ShardStream::kCompute,
                            Category::kGradients);
  Group& of = groups_[group];
  // A loop variable of FSDP's still refers to the last parameter's gradient.
  const Storage kept = OfLastParameter(group);
  for (const Storage gradient : of.whole) {
    if (gradient != kept) variant_.edit.Free(NowOf(gradient));
  }
  Storage shard = MakeShard(bytes);
  variant_.edit.Free(NowOf(kept));
  // What is there already gets the sum.
  if (of.shard != kElsewhere) variant_.edit.Free(std::exchange(shard, of.shard));
  of.shard = shard;
  of.stand_for_shard += static_cast<int>(of.whole.size());
  for (const Storage gradient : std::exchange(of.whole, {})) {
    reduced_[gradient] = group;
    widened_.erase(gradient);
  }
}

Storage ShardedGradients::MakeShard(Bytes whole) {
  const Bytes in_buffer = variant_.AsReduced(whole);
  const Bytes kept = variant_.AsKept(whole);
  const std::int64_t ranks = variant_.sharding.ranks;
  constexpr std::string_view kWhat = "gradients, sharded";
  const Storage reduced =
      variant_.MakeBy(Collective::Kind::kReduceScatter, in_buffer, kWhat, in_buffer / ranks,
                      ShardStream::kReduce, Category::kGradients);
  variant_.CopyByGloo(in_buffer, ShardStream::kReduce);
  if (variant_.sharding.replicas > 1) {
    // Groups that have the same shards sum them up in place.
    variant_.edit.Call(CallOf(variant_.job, {.kind = Collective::Kind::kAllReduce,
                                             .bytes = Number::Always(in_buffer / ranks),
                                             .ranks = variant_.sharding.replicas,
                                             .apart = variant_.sharding.apart * ranks}));
  }
  if (in_buffer == kept) return reduced;
  const Storage shard =
      variant_.Make(kWhat, kept / ranks, ShardStream::kReduce, Category::kGradients);
  variant_.edit.Free(reduced);
  return shard;
}

/// The gradient of the group's last parameter, as far as sizes tell: the first made, since a
/// backward comes to the last ones first.
Storage ShardedGradients::OfLastParameter(std::size_t group) const {
  const std::vector<std::uint32_t>& parameters = variant_.ParametersOf(group);
  const std::vector<ModelTensor>& tensors = variant_.old.model_tensors;
  const auto last = std::find_if(parameters.rbegin(), parameters.rend(),
                                 [&](std::uint32_t p) { return tensors[p].trainable; });
  if (last == parameters.rend()) return kElsewhere;
  const Bytes bytes = BytesOf(variant_.job, tensors[*last]);
  for (const Storage gradient : groups_[group].whole) {
    if (captured_.at(gradient).bytes == bytes) return gradient;
  }
  return kElsewhere;
}

void ShardedGradients::EndBackward() { variant_.edit.FreeNow(reducing_); }

/// A gradient that was reduced is gone by now; the shard goes with the last of its group's.
void ShardedGradients::Free(const JobEvent& event) {
  if (const auto adding = adding_.find(event.index); adding != adding_.end()) {
    // In 16 bits until the group's backward ends, when it is added.
    groups_[adding->second].added.push_back(event.index);
    adding_.erase(adding);
    return;
  }
  const auto reduced = reduced_.find(event.index);
  if (reduced == reduced_.end()) {
    const auto gradient = captured_.find(event.index);
    if (gradient != captured_.end()) std::erase(groups_[gradient->second.group].whole, event.index);
    return variant_.edit.Copy(event);
  }
  Group& of = groups_[reduced->second];
  reduced_.erase(reduced);
  if (--of.stand_for_shard == 0) variant_.edit.FreeNow(of.shard);
}

}  // namespace plimsoll
