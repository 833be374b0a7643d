// Blocks are divided as evenly as their number allows. What is in no block goes with the block
// before it in time: embeddings to the first piece, the last norm, the head and the loss to the
// last one. What a piece reads and another made is received; the inputs are.
#include "job/parallel/pipeline_stage.h"

#include <algorithm>
#include <utility>

#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

class StageFinder {
 public:
  StageFinder(const Job& job, const Variant& variant, const Pipeline& pipeline, int stage)
      : job_(job),
        variant_(variant),
        pipeline_(pipeline),
        stage_(stage),
        groups_(job, variant),
        blocks_(groups_.all().size() - 1),
        pieces_(static_cast<std::size_t>(pipeline.stages) *
                static_cast<std::size_t>(pipeline.chunks)) {
    for (const ModelTensor& tensor : variant.model_tensors) model_.insert(tensor.storage);
    FindOutputs();
  }

  PipelineStage Run() {
    for (at_ = 0; at_ < variant_.events.size(); ++at_) {
      const JobEvent& event = variant_.events[at_];
      if (event.kind == JobEvent::Kind::kStage) BeginPhase(event.stage);
      if (event.kind == JobEvent::Kind::kStep) open_ = false;
      if (!open_) continue;
      if (event.kind == JobEvent::Kind::kCall) RunCall(variant_.calls[event.index]);
      if (event.kind == JobEvent::Kind::kFree || event.kind == JobEvent::Kind::kLabel) {
        FollowOwner(event);
      }
    }
    found_.outputs = outputs_;
    return std::move(found_);
  }

 private:
  /// What the last module inside of the model makes is its output; a loss comes after it. The
  /// schedule holds it until its backward is done, and what a stage sends in a forward as well.
  void FindOutputs() {
    const CallRecord* last = nullptr;
    Stage phase = Stage::kBuild;
    for (const JobEvent& event : variant_.events) {
      if (event.kind == JobEvent::Kind::kStage) phase = event.stage;
      if (event.kind == JobEvent::Kind::kStage && phase == Stage::kBackward && last != nullptr) {
        for (const NewStorage& fresh : last->fresh) outputs_.insert(fresh.storage);
      }
      if (event.kind != JobEvent::Kind::kCall || phase != Stage::kForward) continue;
      const CallRecord& call = variant_.calls[event.index];
      if (!job_.strings[call.module].empty()) last = &call;
    }
  }

  void BeginPhase(Stage phase) {
    phase_ = phase;
    const bool begins = phase == Stage::kTransfer || phase == Stage::kForward;
    if (begins && !open_) {
      const auto chunks = static_cast<std::size_t>(pipeline_.chunks);
      found_.passes.push_back({.begin = at_, .end = at_, .forward = {}, .backward = {}});
      found_.passes.back().forward.resize(chunks);
      found_.passes.back().backward.resize(chunks);
      open_ = true;
      piece_ = 0;
      owner_.clear();
      made_here_.clear();
      made_elsewhere_.clear();
    }
    if (phase == Stage::kBackward) piece_ = pieces_ - 1;
    if (phase == Stage::kOptimizer && open_) {
      found_.passes.back().end = at_;
      for (const auto& [chunk, event] : std::exchange(held_, {})) {
        found_.passes.back().backward[chunk].push_back({.event = event});
      }
      open_ = false;
    }
  }

  std::size_t PieceOf(std::size_t block) const {
    if (pipeline_.cuts.empty()) return block * pieces_ / blocks_;
    const auto after = std::ranges::upper_bound(pipeline_.cuts, static_cast<int>(block));
    return static_cast<std::size_t>(after - pipeline_.cuts.begin());
  }
  /// A chunk of this GPU; nothing if the piece is another's.
  std::optional<std::size_t> ChunkOf(std::size_t piece) const {
    const auto stages = static_cast<std::size_t>(pipeline_.stages);
    if (piece % stages != static_cast<std::size_t>(stage_)) return std::nullopt;
    return piece / stages;
  }
  std::vector<StageItem>& Turn(std::size_t chunk) {
    StagePass& pass = found_.passes.back();
    return phase_ == Stage::kBackward ? pass.backward[chunk] : pass.forward[chunk];
  }

  void RunCall(CallRecord call) {
    const std::size_t group = groups_.Of(job_.strings[call.module]);
    if (group != ShardGroups::kRoot) piece_ = PieceOf(group - 1);
    const std::optional<std::size_t> chunk =
        phase_ == Stage::kTransfer ? std::nullopt : ChunkOf(piece_);
    if (!chunk) return RunElsewhere(call);
    ForEachArgument(call, [&](const TensorUse& tensor) { Read(tensor.storage, *chunk); });
    Turn(*chunk).push_back({.event = at_});
    for (const NewStorage& fresh : call.fresh) {
      owner_[fresh.storage] = *chunk;
      made_here_[fresh.storage] = {phase_, fresh.bytes};
    }
  }

  void Read(Storage storage, std::size_t chunk) {
    if (model_.contains(storage)) found_.model.insert(storage);
    const auto elsewhere = made_elsewhere_.find(storage);
    if (elsewhere == made_elsewhere_.end() || owner_.contains(storage)) return;
    const std::ptrdiff_t before =
        std::ranges::count(Turn(chunk), StageItem::Kind::kReceive, &StageItem::kind);
    Turn(chunk).push_back({.kind = StageItem::Kind::kReceive,
                           .event = static_cast<std::size_t>(before),
                           .storage = storage,
                           .bytes = elsewhere->second});
    owner_[storage] = chunk;
  }

  /// What another GPU reads of what was made here, in the same direction, is sent once.
  void RunElsewhere(CallRecord& call) {
    ForEachArgument(call, [&](const TensorUse& tensor) {
      const auto made = made_here_.find(tensor.storage);
      if (made == made_here_.end() || made->second.first != phase_) return;
      if (phase_ == Stage::kForward) outputs_.insert(tensor.storage);
      Turn(owner_.at(tensor.storage))
          .push_back({.kind = StageItem::Kind::kSend,
                      .storage = tensor.storage,
                      .bytes = made->second.second});
      made_here_.erase(made);
    });
    for (const NewStorage& fresh : call.fresh) made_elsewhere_[fresh.storage] = fresh.bytes;
  }

  void FollowOwner(const JobEvent& event) {
    const auto owner = owner_.find(event.index);
    const bool held = event.kind == JobEvent::Kind::kFree && outputs_.contains(event.index);
    if (owner != owner_.end() && held) {
      held_.push_back({owner->second, at_});
    } else if (owner != owner_.end()) {
      Turn(owner->second).push_back({.event = at_});
    } else if (event.kind == JobEvent::Kind::kFree) {
      found_.passes.back().let_go.push_back(event.index);
    }
  }

  const Job& job_;
  const Variant& variant_;
  const Pipeline& pipeline_;
  const int stage_;
  const ShardGroups groups_;
  const std::size_t blocks_;
  const std::size_t pieces_;
  std::set<Storage> model_;
  std::set<Storage> outputs_;
  /// Chunks, and the events that let go of their outputs.
  std::vector<std::pair<std::size_t, std::size_t>> held_;
  PipelineStage found_;
  std::size_t at_ = 0;
  Stage phase_ = Stage::kBuild;
  bool open_ = false;
  /// Of the last call.
  std::size_t piece_ = 0;
  /// The chunk that made or received a storage.
  std::map<Storage, std::size_t> owner_;
  std::map<Storage, std::pair<Stage, Number>> made_here_;
  std::map<Storage, Number> made_elsewhere_;
};

}  // namespace

PipelineStage TakeApart(const Job& job, const Variant& variant, const Pipeline& pipeline,
                        int stage) {
  return StageFinder(job, variant, pipeline, stage).Run();
}

}  // namespace plimsoll
