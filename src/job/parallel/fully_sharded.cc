// As traces of an H200 with torch 2.11 show it, allocation by allocation (docs/prediction.md,
// "Several GPUs"). A group is a block, or the root with all that is in none.
//
// Forward: a group is gathered into one buffer and copied from there into whole parameters. The
// buffer stays until the next group has its own copies, so that copying and gathering overlap. A
// block lets its whole parameters go at its end, the root keeps them for the backward.
// Backward: a block is gathered while the one after it still runs. At its end its whole gradients
// are copied into one buffer, which stays until the next group's, and are reduced into the shard.
//
// Under a MixedPrecisionPolicy a rank's shards are cast into a buffer of their own before they are
// gathered, and gradients are widened on their way into the buffer of the reduction.
//
// Buffers of gathering and shards of gradients are made in streams of their own, and the allocator
// keeps what is free apart by stream.
//
// Gloo copies the whole of what it gathers, and of what it reduces, in the stream that asks for it.
// Gathering is asked for in another stream than the one that the buffer is made in.
#include "job/parallel/fully_sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "job/parallel/collective.h"
#include "job/parallel/shard_layouts.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/shard_groups.h"

namespace plimsoll {
namespace {

constexpr std::uint8_t kComputeStream = 0;
constexpr std::uint8_t kGatherStream = 1;
constexpr std::uint8_t kReduceStream = 2;
constexpr std::uint8_t kAskingToGatherStream = 3;

constexpr std::size_t kRoot = ShardGroups::kRoot;

/// What a group has on the device at one moment; kElsewhere for what it has not.
struct State {
  Storage gathered = kElsewhere;
  std::vector<Storage> whole;
  /// Made in this backward and not reduced yet.
  std::vector<Storage> gradients;
  /// The reduced gradients, and how many of the captured ones stand for them.
  Storage shard = kElsewhere;
  int stand_for_shard = 0;
};

/// The calls of a group in one backward, as indices of events.
struct Span {
  std::size_t first = 0;
  std::size_t last = 0;
};

class FullySharded {
 public:
  FullySharded(Job& job, const Variant& old, const Sharding& sharding)
      : job_(job),
        old_(old),
        sharding_(sharding),
        groups_(ShardGroups::AsSharded(job, old)),
        layouts_(job, old, sharding),
        states_(groups_.all().size()),
        edit_(job, old, "plimsoll.fully_sharded") {
    FindGradients();
  }

  Variant Run() {
    for (at_ = 0; at_ < old_.events.size(); ++at_) RunEvent(old_.events[at_]);
    Begin(Stage::kUnknown);
    return edit_.Take();
  }

 private:
  void RunEvent(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        return RunModelTensor(event);
      case JobEvent::Kind::kStep:
        if (!std::exchange(sharded_, true) && !sharding_.meta) ShardModel();
        Begin(Stage::kUnknown);
        return edit_.Copy(event);
      case JobEvent::Kind::kStage:
        Begin(event.stage);
        edit_.Copy(event);
        if (event.stage == Stage::kBackward) BeginBackward();
        return;
      case JobEvent::Kind::kCall:
        return RunCall(event);
      case JobEvent::Kind::kFree:
        return RunFree(event);
      case JobEvent::Kind::kLabel:
        // Gradients are labelled when they are made: later they are not there any more.
        if (!group_of_gradient_.contains(event.index)) edit_.Copy(event);
        return;
    }
  }

  // The model: whole on the device at first, then sharded group by group.

  void RunModelTensor(const JobEvent& event) {
    const ModelTensor& tensor = old_.model_tensors[event.index];
    if (tensor.buffer) return edit_.Copy(event);
    if (sharding_.meta) return MakeShard(event.index);
    if (whole_.contains(tensor.storage)) return;
    whole_[tensor.storage] = Make("the whole model", AsKept(BytesOf(job_, tensor)), kComputeStream,
                                  Category::kParameters);
  }

  void MakeShard(std::uint32_t index) {
    edit_.variant().model_tensors[index].layout =
        layouts_.ShardOf(old_.model_tensors[index].layout);
    edit_.Copy({.kind = JobEvent::Kind::kModelTensor, .index = index});
  }
  void ShardModel() {
    for (std::size_t g = 1; g < states_.size(); ++g) ShardGroupOf(g);
    ShardGroupOf(kRoot);
  }
  void ShardGroupOf(std::size_t group) {
    for (const std::uint32_t index : ParametersOf(group)) MakeShard(index);
    for (const std::uint32_t index : ParametersOf(group)) {
      const auto whole = whole_.find(old_.model_tensors[index].storage);
      if (whole != whole_.end()) edit_.Free(whole->second);
    }
  }

  const std::vector<std::uint32_t>& ParametersOf(std::size_t group) const {
    return groups_.all()[group].parameters;
  }

  Bytes GatheredBytes(std::size_t group) const {
    Bytes sum = 0;
    for (const std::uint32_t p : ParametersOf(group))
      sum += layouts_.PaddedBytes(old_.model_tensors[p]);
    return sum;
  }
  Bytes GradientBytes(std::size_t group) const {
    Bytes sum = 0;
    for (const std::uint32_t p : ParametersOf(group)) {
      if (old_.model_tensors[p].trainable) sum += layouts_.PaddedBytes(old_.model_tensors[p]);
    }
    return sum;
  }

  /// Of so many bytes as they are computed with: as shards have them, and as they are reduced.
  Bytes AsKept(Bytes bytes) const { return Cast(bytes, DType::kFloat32); }
  Bytes AsReduced(Bytes bytes) const {
    return sharding_.policy ? Cast(bytes, sharding_.policy->reduce) : bytes;
  }
  Bytes Cast(Bytes bytes, DType to) const {
    if (!sharding_.policy) return bytes;
    return bytes / ElementSize(sharding_.policy->param) * ElementSize(to);
  }

  // Phases.

  void Begin(Stage stage) {
    if (stage_ == Stage::kForward) EndForward();
    if (stage_ == Stage::kBackward) EndBackward();
    stage_ = stage;
  }

  void EndForward() {
    CloseBlock();
    edit_.FreeNow(lingering_);
  }

  void BeginBackward() {
    reached_model_ = false;
    spans_.assign(states_.size(), std::nullopt);
    for (std::size_t i = at_ + 1; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind == JobEvent::Kind::kStage || event.kind == JobEvent::Kind::kStep) break;
      if (event.kind != JobEvent::Kind::kCall) continue;
      std::optional<Span>& span = spans_[GroupOf(old_.calls[event.index])];
      if (!span) span = Span{.first = i};
      span->last = i;
    }
  }

  void EndBackward() {
    ReduceFinished(old_.events.size());
    Reduce(kRoot);
    edit_.Call(WaitCall(job_));
    for (State& state : states_) edit_.FreeNow(state.gathered);
    edit_.FreeNow(reducing_);
    forward_order_.clear();
  }

  // Calls.

  std::size_t GroupOf(const CallRecord& call) const {
    return groups_.Of(job_.strings[call.module]);
  }

  /// Where a capture does not tell, the loss counts as part of the model.
  bool IsInModel(const CallRecord& call) const { return !job_.names_root || call.module.valid(); }

  void RunCall(const JobEvent& event) {
    const CallRecord& call = old_.calls[event.index];
    if (stage_ == Stage::kForward && !IsInModel(call)) EndForward();
    if (stage_ == Stage::kForward && IsInModel(call)) BeforeForward(GroupOf(call));
    if (stage_ == Stage::kBackward) BeforeBackward(call);
    if (stage_ == Stage::kOptimizer) layouts_.ShardCall(edit_.variant().calls[event.index]);
    edit_.Copy(event);
    if (stage_ == Stage::kBackward) NoteGradients(call);
  }

  void BeforeForward(std::size_t group) {
    if (states_[kRoot].whole.empty() && !ParametersOf(kRoot).empty()) OpenInForward(kRoot);
    if (group == open_) return;
    CloseBlock();
    if (group == kRoot) return;
    OpenInForward(group);
    open_ = group;
  }
  void OpenInForward(std::size_t group) {
    Unshard(group);
    edit_.FreeNow(lingering_);
    lingering_ = std::exchange(states_[group].gathered, kElsewhere);
  }
  void CloseBlock() {
    if (open_ == kRoot) return;
    if (!Keeps(open_)) Reshard(open_);
    forward_order_.push_back(open_);
    open_ = kRoot;
  }

  bool Keeps(std::size_t group) const {
    if (sharding_.keep == Sharding::Keep::kLast) return group + 1 == states_.size();
    return sharding_.keep == Sharding::Keep::kAll;
  }

  void BeforeBackward(const CallRecord& call) {
    // The model hears of the backward when the gradient of its output is there.
    if (IsInModel(call) && !std::exchange(reached_model_, true) && !forward_order_.empty()) {
      Gather(forward_order_.back());
    }
    const std::size_t group = GroupOf(call);
    ReduceFinished(at_);
    if (group == kRoot || !spans_[group] || spans_[group]->first != at_) return;
    Unshard(group);
    edit_.FreeNow(states_[group].gathered);
    const auto found = std::find(forward_order_.rbegin(), forward_order_.rend(), group);
    if (found != forward_order_.rend() && found + 1 != forward_order_.rend()) Gather(*(found + 1));
  }
  void ReduceFinished(std::size_t now) {
    for (std::size_t g = 1; g < states_.size(); ++g) {
      if (!spans_[g] || spans_[g]->last >= now) continue;
      spans_[g].reset();
      Reduce(g);
    }
  }

  // Gathering and reducing.

  void Gather(std::size_t group) {
    State& state = states_[group];
    if (state.gathered != kElsewhere || !state.whole.empty()) return;
    const Bytes bytes = GatheredBytes(group);
    Storage cast = kElsewhere;
    if (sharding_.policy) {
      cast = Make("shards, cast", bytes / sharding_.ranks, kGatherStream, Category::kTemporaries);
    }
    state.gathered = MakeBy(Collective::Kind::kAllGather, "all-gather", bytes, bytes, kGatherStream,
                            Category::kTemporaries);
    CopyByGloo(bytes, kAskingToGatherStream);
    edit_.Free(cast);
  }
  void Unshard(std::size_t group) {
    State& state = states_[group];
    if (!state.whole.empty()) return;
    Gather(group);
    if (state.gathered != kElsewhere) edit_.Call(WaitCall(job_, state.gathered));
    for (const std::uint32_t p : ParametersOf(group)) {
      state.whole.push_back(Make("parameters, gathered",
                                 layouts_.PaddedBytes(old_.model_tensors[p]), kComputeStream,
                                 Category::kParameters));
    }
  }
  void Reshard(std::size_t group) {
    for (const Storage storage : states_[group].whole) edit_.Free(storage);
    states_[group].whole.clear();
  }

  void Reduce(std::size_t group) {
    Reshard(group);
    edit_.FreeNow(reducing_);
    const Bytes bytes = GradientBytes(group);
    if (bytes == 0) return;
    reducing_ = Make("reduce-scatter", AsReduced(bytes), kComputeStream, Category::kGradients);
    State& state = states_[group];
    // A loop variable of FSDP's still refers to the last parameter's gradient.
    const Storage kept = GradientOfLast(group);
    for (const Storage gradient : state.gradients) {
      if (gradient != kept) edit_.Free(gradient);
    }
    Storage shard = MakeShardOfGradients(bytes);
    edit_.Free(kept);
    // What is there already gets the sum.
    if (state.shard != kElsewhere) edit_.Free(std::exchange(shard, state.shard));
    state.shard = shard;
    state.stand_for_shard += static_cast<int>(state.gradients.size());
    for (const Storage gradient : std::exchange(state.gradients, {})) reduced_[gradient] = group;
  }

  /// `bytes` of whole gradients.
  Storage MakeShardOfGradients(Bytes bytes) {
    const Storage reduced =
        MakeBy(Collective::Kind::kReduceScatter, "gradients, sharded", AsReduced(bytes),
               AsReduced(bytes) / sharding_.ranks, kReduceStream, Category::kGradients);
    CopyByGloo(AsReduced(bytes), kReduceStream);
    if (AsReduced(bytes) == AsKept(bytes)) return reduced;
    const Storage shard = Make("gradients, sharded", AsKept(bytes) / sharding_.ranks, kReduceStream,
                               Category::kGradients);
    edit_.Free(reduced);
    return shard;
  }

  /// That of the group's last parameter, as far as sizes tell: the first made, since a backward
  /// comes to the last ones first.
  Storage GradientOfLast(std::size_t group) const {
    const std::vector<std::uint32_t>& parameters = ParametersOf(group);
    const auto last = std::find_if(parameters.rbegin(), parameters.rend(), [&](std::uint32_t p) {
      return old_.model_tensors[p].trainable;
    });
    if (last == parameters.rend()) return kElsewhere;
    const Bytes bytes = BytesOf(job_, old_.model_tensors[*last]);
    for (const Storage gradient : states_[group].gradients) {
      if (bytes_of_gradient_.at(gradient) == bytes) return gradient;
    }
    return kElsewhere;
  }

  // Gradients of the capture.

  void FindGradients() {
    for (const JobEvent& event : old_.events) {
      if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
        group_of_gradient_[event.index] = kRoot;
      }
    }
    for (const CallRecord& call : old_.calls) {
      for (const NewStorage& fresh : call.fresh) {
        const auto gradient = group_of_gradient_.find(fresh.storage);
        if (gradient == group_of_gradient_.end()) continue;
        gradient->second = GroupOf(call);
        bytes_of_gradient_[fresh.storage] = fresh.bytes.first;
      }
    }
  }

  void NoteGradients(const CallRecord& call) {
    for (const NewStorage& fresh : call.fresh) {
      const auto gradient = group_of_gradient_.find(fresh.storage);
      if (gradient == group_of_gradient_.end()) continue;
      states_[gradient->second].gradients.push_back(fresh.storage);
      edit_.Label(fresh.storage, Category::kGradients);
    }
  }

  /// A gradient that was reduced is gone by now; the shard goes with the last of its group's.
  void RunFree(const JobEvent& event) {
    const auto reduced = reduced_.find(event.index);
    if (reduced == reduced_.end()) {
      const auto gradient = group_of_gradient_.find(event.index);
      if (gradient != group_of_gradient_.end()) {
        std::erase(states_[gradient->second].gradients, event.index);
      }
      return edit_.Copy(event);
    }
    State& state = states_[reduced->second];
    reduced_.erase(reduced);
    if (--state.stand_for_shard == 0) edit_.FreeNow(state.shard);
  }

  void CopyByGloo(Bytes bytes, std::uint8_t stream) {
    if (job_.backend != Backend::kGloo) return;
    edit_.Free(Make("gloo's copy", bytes, stream, Category::kTemporaries));
  }

  Storage Make(std::string_view what, Bytes bytes, std::uint8_t stream, Category category) {
    return edit_.Make(fmt::format("fully_shard: {}", what), bytes, category, stream);
  }
  /// What a collective over `whole` bytes makes. Shards can be gathered at any time, gradients are
  /// reduced when they are there.
  Storage MakeBy(Collective::Kind kind, std::string_view what, Bytes whole, Bytes made,
                 std::uint8_t stream, Category category) {
    if (made <= 0) return kElsewhere;
    CallRecord call =
        CallOf(job_, {kind, {whole, whole}, sharding_.ranks}, kind == Collective::Kind::kAllGather);
    call.where = job_.strings.Intern(fmt::format("fully_shard: {}", what));
    call.stream = stream;
    const Storage storage = edit_.NewStorageNumber();
    call.fresh.push_back({.storage = storage, .bytes = {made, made}});
    edit_.Call(std::move(call));
    edit_.Label(storage, category);
    return storage;
  }

  Job& job_;
  const Variant& old_;
  const Sharding sharding_;
  const ShardGroups groups_;
  ShardLayouts layouts_;
  /// By group.
  std::vector<State> states_;
  std::vector<std::optional<Span>> spans_;
  JobEditor edit_;
  /// By storage of the parameter, until it is sharded.
  std::map<Storage, Storage> whole_;
  /// By captured storage.
  std::map<Storage, std::size_t> group_of_gradient_;
  std::map<Storage, Bytes> bytes_of_gradient_;
  std::map<Storage, std::size_t> reduced_;
  /// The event that is read, and the phase that it is in.
  std::size_t at_ = 0;
  Stage stage_ = Stage::kBuild;
  bool sharded_ = false;
  /// In this backward.
  bool reached_model_ = false;
  /// The block that runs in the forward; the root if none does.
  std::size_t open_ = kRoot;
  /// Blocks in the order in which their forwards ended.
  std::vector<std::size_t> forward_order_;
  /// The buffer from which the last group was copied, and that of the last reduction.
  Storage lingering_ = kElsewhere;
  Storage reducing_ = kElsewhere;
};

}  // namespace

Variant AddFullySharded(Job& job, const Variant& variant, const Sharding& sharding) {
  job.backend = sharding.backend.value_or(job.backend);
  return FullySharded(job, variant, sharding).Run();
}

}  // namespace plimsoll
