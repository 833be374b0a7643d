// As traces of an H200 with torch 2.11 show it, allocation by allocation (docs/prediction.md,
// "Several GPUs"). A group is a block, or the root with all that is in none.
//
// Forward: a group is gathered into one buffer and copied from there into whole parameters. The
// buffer stays until the next group has its own copies, so that copying and gathering overlap. A
// block lets its whole parameters go at its end, the root keeps them for the backward.
// Backward: a block is gathered while the one after it still runs. At its end its whole gradients
// are copied into one buffer, which stays until the next group's, and are reduced into the shard.
//
// Around a stage of a pipeline a block keeps its whole parameters after a backward, and its whole
// gradients, in the type of the reduction, until all micro-batches are done.
//
// Under a MixedPrecisionPolicy a rank's shards are cast into a buffer of their own before they are
// gathered, and gradients are widened on their way into the buffer of the reduction.
#include "job/parallel/fully_sharded.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "job/parallel/collective.h"
#include "job/parallel/gathered_parameters.h"
#include "job/parallel/sharded_gradients.h"
#include "job/parallel/sharded_variant.h"

namespace plimsoll {
namespace {

constexpr std::size_t kRoot = ShardGroups::kRoot;

/// The model: whole on the device at first, then sharded group by group. Where it is built on the
/// meta device there are only ever the shards.
class ModelShards {
 public:
  explicit ModelShards(ShardedVariant& variant) : variant_(variant) {}

  void Run(const JobEvent& event) {
    const ModelTensor& tensor = variant_.old.model_tensors[event.index];
    const bool left_out = variant_.sharding.left_out.contains(tensor.storage);
    if (tensor.buffer || left_out) return variant_.edit.Copy(event);
    if (variant_.sharding.meta) return MakeShard(event.index);
    if (whole_.contains(tensor.storage)) return;
    whole_[tensor.storage] =
        variant_.Make("the whole model", variant_.AsKept(BytesOf(variant_.job, tensor)),
                      ShardStream::kCompute, Category::kParameters);
  }

  /// Before the first step, and only then.
  void Shard() {
    if (std::exchange(sharded_, true) || variant_.sharding.meta) return;
    for (std::size_t g = 1; g < variant_.groups.all().size(); ++g) ShardGroupOf(g);
    ShardGroupOf(kRoot);
  }

 private:
  void MakeShard(std::uint32_t index) {
    variant_.edit.variant().model_tensors[index].layout =
        variant_.layouts.ShardOf(variant_.old.model_tensors[index].layout);
    variant_.edit.Copy({.kind = JobEvent::Kind::kModelTensor, .index = index});
  }
  void ShardGroupOf(std::size_t group) {
    for (const std::uint32_t index : variant_.ParametersOf(group)) MakeShard(index);
    for (const std::uint32_t index : variant_.ParametersOf(group)) {
      const auto whole = whole_.find(variant_.old.model_tensors[index].storage);
      if (whole != whole_.end()) variant_.edit.Free(whole->second);
    }
  }

  ShardedVariant& variant_;
  /// By storage of the parameter, until it is sharded.
  std::map<Storage, Storage> whole_;
  bool sharded_ = false;
};

/// The calls of a group in one backward, as indices of events.
struct Span {
  std::size_t first = 0;
  std::size_t last = 0;
};

/// The last call of a group in one backward, as the index of its event.
struct End {
  std::size_t event = 0;
  std::size_t group = 0;
};

/// By group; nothing for those that have no call in the backward that begins there.
std::vector<std::optional<Span>> SpansOfBackward(const ShardedVariant& variant, std::size_t begin) {
  std::vector<std::optional<Span>> spans(variant.groups.all().size());
  const std::vector<JobEvent>& events = variant.old.events;
  for (std::size_t i = begin + 1; i < events.size(); ++i) {
    if (events[i].kind == JobEvent::Kind::kStage || events[i].kind == JobEvent::Kind::kStep) break;
    if (events[i].kind != JobEvent::Kind::kCall) continue;
    std::optional<Span>& span = spans[variant.GroupOf(variant.old.calls[events[i].index])];
    if (!span) span = Span{.first = i};
    span->last = i;
  }
  return spans;
}

/// Goes through the captured events, and gathers and reduces each group when its turn comes.
class FullySharded {
 public:
  FullySharded(Job& job, const Variant& old, const Sharding& sharding)
      : variant_(job, old, sharding),
        model_(variant_),
        parameters_(variant_),
        gradients_(variant_) {}

  Variant Run() {
    const std::vector<JobEvent>& events = variant_.old.events;
    for (at_ = 0; at_ < events.size(); ++at_) RunEvent(events[at_]);
    Begin(Stage::kUnknown);
    return variant_.edit.Take();
  }

 private:
  void RunEvent(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        return model_.Run(event);
      case JobEvent::Kind::kStep:
        model_.Shard();
        Begin(Stage::kUnknown);
        return variant_.edit.Copy(event);
      case JobEvent::Kind::kStage:
        Begin(event.stage);
        variant_.edit.Copy(event);
        if (event.stage == Stage::kBackward) BeginBackward();
        return;
      case JobEvent::Kind::kCall:
        return RunCall(event);
      case JobEvent::Kind::kFree:
        return gradients_.Free(event);
      case JobEvent::Kind::kLabel:
        // Gradients are labelled when they are made: later they are not there any more.
        if (!gradients_.Has(event.index)) variant_.edit.Copy(event);
        return;
      case JobEvent::Kind::kRound:
        return variant_.edit.Copy(event);
    }
  }

  // Phases.

  void Begin(Stage stage) {
    if (stage_ == Stage::kForward) EndForward();
    if (stage_ == Stage::kBackward) EndBackward();
    stage_ = stage;
    if (stage != Stage::kForward && stage != Stage::kBackward) EndMicroBatches();
  }

  void EndForward() {
    CloseBlock();
    parameters_.EndForward();
  }

  void BeginBackward() {
    reached_model_ = false;
    spans_ = SpansOfBackward(variant_, at_);
    ends_.clear();
    for (std::size_t g = 1; g < spans_.size(); ++g) {
      if (spans_[g]) ends_.push_back({.event = spans_[g]->last, .group = g});
    }
    std::ranges::sort(ends_, {}, &End::event);
    finished_ = 0;
  }

  bool InPipeline() const { return variant_.sharding.in_pipeline; }

  /// A stage of a pipeline reduces what all micro-batches have added up: the root first.
  void EndMicroBatches() {
    if (!std::exchange(to_reduce_, false)) return;
    for (std::size_t g = 0; g < variant_.groups.all().size(); ++g) Reduce(g);
    variant_.edit.Call(WaitCall(variant_.job));
    gradients_.EndBackward();
    forward_order_.clear();
  }

  void EndBackward() {
    ReduceFinished(variant_.old.events.size());
    if (InPipeline()) {
      gradients_.Hold(kRoot);
      parameters_.EndBackward();
      to_reduce_ = true;
      return;
    }
    Reduce(kRoot);
    variant_.edit.Call(WaitCall(variant_.job));
    parameters_.EndBackward();
    gradients_.EndBackward();
    forward_order_.clear();
  }

  // Calls.

  /// Where a capture does not tell, the loss counts as part of the model.
  bool IsInModel(const CallRecord& call) const {
    return !variant_.job.names_root || call.module.valid();
  }

  void RunCall(const JobEvent& event) {
    const CallRecord& call = variant_.old.calls[event.index];
    JobEditor& edit = variant_.edit;
    if (stage_ == Stage::kForward && !IsInModel(call)) EndForward();
    if (stage_ == Stage::kForward && IsInModel(call)) BeforeForward(variant_.GroupOf(call));
    if (stage_ == Stage::kBackward) BeforeBackward(call);
    if (stage_ == Stage::kOptimizer) {
      variant_.layouts.ShardCall(edit.variant().calls[event.index]);
    }
    edit.Copy(event);
    if (stage_ == Stage::kBackward) gradients_.Note(call);
  }

  void BeforeForward(std::size_t group) {
    if (!parameters_.IsWhole(kRoot) && !variant_.ParametersOf(kRoot).empty()) {
      parameters_.UnshardInForward(kRoot);
    }
    if (group == open_) return;
    CloseBlock();
    if (group == kRoot) return;
    parameters_.UnshardInForward(group);
    open_ = group;
  }
  void CloseBlock() {
    if (open_ == kRoot) return;
    if (!Keeps(open_)) parameters_.Reshard(open_);
    forward_order_.push_back(open_);
    open_ = kRoot;
  }

  bool Keeps(std::size_t group) const {
    const Sharding::Keep keep = variant_.sharding.keep;
    if (keep == Sharding::Keep::kLast) return group + 1 == variant_.groups.all().size();
    return keep == Sharding::Keep::kAll;
  }

  void BeforeBackward(const CallRecord& call) {
    // The model hears of the backward when the gradient of its output is there.
    if (IsInModel(call) && !std::exchange(reached_model_, true) && !forward_order_.empty()) {
      parameters_.Gather(forward_order_.back());
    }
    const std::size_t group = variant_.GroupOf(call);
    ReduceFinished(at_);
    if (group == kRoot || !spans_[group] || spans_[group]->first != at_) return;
    parameters_.UnshardInBackward(group);
    const auto found = std::find(forward_order_.rbegin(), forward_order_.rend(), group);
    if (found != forward_order_.rend() && found + 1 != forward_order_.rend()) {
      parameters_.Gather(*(found + 1));
    }
  }
  void ReduceFinished(std::size_t now) {
    const auto begin = ends_.begin() + static_cast<std::ptrdiff_t>(finished_);
    const auto end = std::ranges::lower_bound(begin, ends_.end(), now, {}, &End::event);
    std::ranges::sort(begin, end, {}, &End::group);
    finished_ = static_cast<std::size_t>(end - ends_.begin());
    for (auto one = begin; one != end; ++one) {
      if (InPipeline()) {
        gradients_.Hold(one->group);
      } else {
        Reduce(one->group);
      }
    }
  }
  void Reduce(std::size_t group) {
    parameters_.Reshard(group);
    gradients_.Reduce(group);
  }

  ShardedVariant variant_;
  ModelShards model_;
  GatheredParameters parameters_;
  ShardedGradients gradients_;
  /// The event that is read, and the phase that it is in.
  std::size_t at_ = 0;
  Stage stage_ = Stage::kBuild;
  /// The block that runs in the forward; the root if none does.
  std::size_t open_ = kRoot;
  /// Blocks in the order in which their forwards ended.
  std::vector<std::size_t> forward_order_;
  /// Of micro-batches: whole gradients wait.
  bool to_reduce_ = false;
  /// Of this backward.
  bool reached_model_ = false;
  std::vector<std::optional<Span>> spans_;
  /// Of those, in order, and how many of them are reduced.
  std::vector<End> ends_;
  std::size_t finished_ = 0;
};

}  // namespace

Variant AddFullySharded(Job& job, const Variant& variant, const Sharding& sharding) {
  job.backend = sharding.backend.value_or(job.backend);
  return FullySharded(job, variant, sharding).Run();
}

}  // namespace plimsoll
