#include "job/lowering/lower.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "job/calls/arithmetic.h"
#include "job/lowering/drawn_sizes.h"
#include "job/lowering/graph_pool.h"
#include "job/lowering/placed_job.h"
#include "job/lowering/repeated_round.h"
#include "job/lowering/repetition.h"
#include "job/lowering/request_writer.h"
#include "job/lowering/storage_blocks.h"
#include "job/rules/rules.h"
#include "job/rules/workspace_lookup.h"

namespace plimsoll {
namespace {

/// Beyond so many requests no more batches of a loop are repeated.
constexpr std::size_t kMostRepeated = 300'000;
/// Of a loop that grows so many are made at most, of rounds evenly spread.
constexpr std::size_t kMostGrowing = 1'000'000;
/// No batch is as large; what is beyond fits nowhere.
constexpr std::int64_t kLargestOfPart = std::int64_t{1} << 40;

EventSpan AllOf(const std::vector<JobEvent>& events) { return {.begin = 0, .end = events.size()}; }

std::vector<MadeStorage> Made(const Variant& variant, const Part& part) {
  return MadeIn(variant, part.events, AllOf(part.events));
}

/// Where the captured steps begin and end in the events.
std::vector<EventSpan> FindSteps(const Variant& variant) {
  std::vector<EventSpan> spans;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    if (variant.events[i].kind != JobEvent::Kind::kStep) continue;
    if (!spans.empty()) spans.back().end = i;
    spans.push_back({.begin = i, .end = variant.events.size()});
  }
  return spans;
}

Category CategoryIn(Stage stage) {
  switch (stage) {
    case Stage::kBuild:
      return Category::kParameters;
    case Stage::kTransfer:
      return Category::kInputs;
    case Stage::kForward:
    case Stage::kEvaluation:
    case Stage::kPrompt:
    case Stage::kGeneration:
      return Category::kActivations;
    default:
      return Category::kTemporaries;
  }
}

/// How far rounds of a loop are apart that are run, where each makes so many requests.
std::int64_t RoundsApart(std::size_t requests, std::int64_t times) {
  const auto most = static_cast<std::int64_t>(kMostGrowing / std::max<std::size_t>(requests, 1));
  return CeilDiv(times, std::max<std::int64_t>(most, 1));
}

/// That of the two sizes that is asked for, and whether that made a difference.
Bytes Estimated(const Workspace& workspace, Estimate estimate, Lowered& lowered) {
  lowered.certain &= workspace.likely == workspace.upper;
  return estimate == Estimate::kUpper ? workspace.upper : workspace.likely;
}

/// What is known of each operator of a job, by its name. Recorded calls have none.
class OperatorTable {
 public:
  explicit OperatorTable(const Job& job) : job_(job) {}

  void Note(StringId op) {
    const std::size_t at = PlaceOf(op);
    if (facts_.size() <= at) facts_.resize(at + 1);
    if (!facts_[at]) facts_[at] = FactsOf(job_.strings[op]);
  }
  const OperatorFacts& Of(StringId op) const { return *facts_[PlaceOf(op)]; }

 private:
  static std::size_t PlaceOf(StringId op) { return op.valid() ? op.index() + 1 : 0; }

  const Job& job_;
  std::vector<std::optional<OperatorFacts>> facts_;
};

/// Goes through the events of a job; the rules of its calls say here what they take.
class Lowerer final : public Emitter {
 public:
  Lowerer(const Job& job, const Variant& variant, const Gpu& gpu, const LowerOptions& options)
      : job_(job),
        variant_(variant),
        gpu_(gpu),
        options_(options),
        asked_(AskedFor(job, gpu)),
        blocks_(variant.storages) {
    std::size_t streams = 1;
    for (const CallRecord& call : variant.calls) {
      operators_.Note(call.op);
      streams = std::max<std::size_t>(streams, call.stream + std::size_t{1});
    }
    lowered_.workload.streams.resize(streams);
    std::iota(lowered_.workload.streams.begin(), lowered_.workload.streams.end(), 0);
  }

  Lowered Run() {
    const std::vector<EventSpan> steps = FindSteps(variant_);
    const std::vector<JobEvent>& events = variant_.events;
    RunEvents(events, {.begin = 0, .end = steps.empty() ? events.size() : steps.front().begin});
    const auto captured = static_cast<int>(steps.size());
    for (int i = 0; i < options_.steps && captured > 0; ++i) {
      requests_.BeginStep(i);
      placed_.PutAtStep(i);
      if (i < captured) {
        RunEvents(events, steps[static_cast<std::size_t>(i)]);
      } else if (captured >= 2) {
        if (!repetition_) repetition_.emplace(job_, variant_, steps, blocks_, requests_);
        for (const Storage storage : repetition_->LeftOver()) RunFree(storage);
        repetition_->Begin(i);
        RunEvents(events, steps.back());
        repetition_->End(i);
      }
    }
    placed_.PutAtAsked();
    // What comes later finds what the last captured step left, or one that stands for it.
    if (options_.later && options_.steps >= captured) RunLater();
    lowered_.workload.allocations = lowered_.blocks.size();
    return std::move(lowered_);
  }

  // Emitter.
  const Gpu& gpu() const override { return gpu_; }
  WorkspaceSources sources() const override { return {options_.calibration, asked_}; }
  TorchVersion torch() const override { return options_.torch; }

  Slot Take(Bytes bytes) override {
    if (bytes <= 0) return {};
    return {requests_.AllocateBeside(bytes, Category::kTemporaries)};
  }
  Slot Take(const Workspace& workspace) override {
    return Take(drawn_.OfWorkspace(Estimated(workspace, options_.estimate, lowered_)));
  }
  void Borrow(const Workspace& workspace) override {
    const Bytes bytes = drawn_.OfWorkspace(Estimated(workspace, options_.estimate, lowered_));
    if (bytes > 0) requests_.Borrow(bytes);
  }
  void Search(std::string_view key, int thread, const Workspace& workspace) override {
    if (!searched_.emplace(key, thread).second) return;
    const Bytes bytes = Estimated(workspace, options_.estimate, lowered_);
    // In a graph's pool the cache is left as it is.
    return requests_.pool() == 0 ? requests_.Search(bytes) : requests_.Borrow(bytes);
  }
  void Give(Slot slot) override {
    if (slot.valid()) requests_.Release(slot.value);
  }

  void Make(std::size_t fresh) override { Make(fresh, call_->FreshBytes(fresh)); }
  void Make(std::size_t fresh, Bytes assumed) override {
    if (fresh >= made_.size() || made_[fresh]) return;
    made_[fresh] = true;
    const Moment& now = requests_.now();
    const Bytes bytes = drawn_.OfResult(placed_.call(now.call), fresh, now.step, assumed);
    blocks_.Put(call_->FreshStorage(fresh), bytes > 0
                                                ? requests_.Allocate(bytes, CategoryIn(now.stage))
                                                : StorageBlocks::kNone);
  }
  void Reuse(std::size_t fresh, Storage argument) override {
    if (fresh >= made_.size() || made_[fresh]) return;
    const std::uint32_t block = blocks_.Of(argument);
    if (block == StorageBlocks::kNone) return;
    made_[fresh] = true;
    blocks_.Share(call_->FreshStorage(fresh), block);
  }

  void Hold(Storage storage, int name, Bytes bytes) override {
    if (bytes <= 0) return;
    const Category category = CategoryIn(requests_.now().stage);
    blocks_.Hold(storage, {.name = name, .block = requests_.AllocateBeside(bytes, category)});
  }
  void GiveHeld(Storage storage, int name) override {
    if (const auto block = blocks_.TakeHeld(storage, name)) requests_.Release(*block);
  }

  void Keep(std::string_view name, int thread, Bytes bytes) override {
    if (bytes > 0) graphs_.Keep(name, thread, bytes);
  }

  void UseGraph(const GraphRegion* region) override {
    return region != nullptr ? graphs_.Begin(*region, blocks_, event_) : graphs_.End();
  }

  bool DiesSoon(Storage storage) const override {
    int calls = 0;
    for (std::size_t i = event_ + 1; i < events_->size() && calls < 2; ++i) {
      const JobEvent& event = (*events_)[i];
      if (event.kind == JobEvent::Kind::kFree && event.index == storage) return true;
      if (event.kind == JobEvent::Kind::kCall) ++calls;
    }
    return false;
  }

 private:
  void RunEvents(const std::vector<JobEvent>& events, const EventSpan& span) {
    events_ = &events;
    graphs_.Expect(events, span.begin, span.end);
    for (event_ = span.begin; event_ < span.end; ++event_) RunEvent(events[event_]);
  }

  void RunLater() {
    for (std::size_t i = 0; i < variant_.later.size(); ++i) {
      const Part& part = variant_.later[i];
      const std::int64_t whole =
          Product(options_.batch, part.of_whole_step ? options_.micro_batches : 1);
      const std::int64_t batch = CeilDiv(std::min(whole, kLargestOfPart), part.shares);
      const std::int64_t of_all = std::min(
          CeilDiv(Product(batch, BatchesAt(job_, part.batches, batch)), part.seen), kLargestOfPart);
      placed_.PutAtBatch(of_all);
      requests_.BeginPart(static_cast<int>(i));
      const std::size_t before = lowered_.moments.size();
      requests_.BeginStage(part.stage);
      RunEvents(part.events, AllOf(part.events));
      const std::int64_t more = BatchesAt(job_, part.times, batch) - 1;
      if (part.grows) {
        RepeatGrowing(i, lowered_.moments.size() - before, more);
      } else if (i > 0) {
        RepeatPart(variant_.later[i - 1], part, more);
      }
      placed_.PutAtAsked();
    }
  }

  /// The further batches of a loop, as long as each leaves more than it found: those that do not
  /// change nothing.
  void RepeatPart(const Part& before, const Part& last, std::int64_t times) {
    const StoragePairs pairs = FindCounterparts(Made(variant_, before), Made(variant_, last));
    for (; times > 0 && lowered_.moments.size() < kMostRepeated; --times) {
      const Bytes held = requests_.held();
      Shift(blocks_, pairs, &like_it_);
      requests_.BeginStage(last.stage);
      RunEvents(last.events, AllOf(last.events));
      if (requests_.held() <= held) return;
    }
    lowered_.left_out += times;
  }

  /// The further rounds of a loop whose numbers grow. `requests`: those of one.
  void RepeatGrowing(std::size_t index, std::size_t requests, std::int64_t times) {
    const Part& last = variant_.later[index];
    const std::vector<MadeStorage> older = Made(variant_, variant_.later[index - 1]);
    const StoragePairs of_older =
        FindCounterparts(Made(variant_, variant_.later[index - 2]), older);
    const StoragePairs of_last = FindCounterparts(older, Made(variant_, last));
    GrowingPart growing(variant_, variant_.later[index - 1], last, placed_.at());
    lowered_.rounds += times;
    std::int64_t apart = 1;
    for (std::int64_t round = 0; round < times;) {
      round = std::min(round + apart, times);
      const Bytes held = requests_.held();
      Shift(blocks_, of_older, &like_it_);
      Shift(blocks_, of_last, &like_it_);
      growing.PutAt(round);
      placed_.PutAtRound(growing);
      requests_.BeginRound(round);
      requests_.BeginStage(last.stage);
      RunEvents(last.events, AllOf(last.events));
      ++lowered_.rounds_run;
      // The same once more changes nothing.
      if (!growing.grows() && requests_.held() <= held) {
        lowered_.rounds_run += times - round;
        break;
      }
      // What each round keeps is there for each of them.
      if (like_it_.empty()) apart = RoundsApart(requests, times);
    }
    placed_.PutAtAsked();
  }

  void RunEvent(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        return RunModelTensor(event.index);
      case JobEvent::Kind::kStep:
        rounds_.Clear();
        return requests_.BeginStage(Stage::kUnknown);
      case JobEvent::Kind::kStage:
        return requests_.BeginStage(event.stage);
      case JobEvent::Kind::kCall:
        return RunCall(event.index);
      case JobEvent::Kind::kFree:
        return RunFree(event.index);
      case JobEvent::Kind::kLabel:
        if (const std::uint32_t block = blocks_.Of(event.index); block != StorageBlocks::kNone) {
          lowered_.blocks[block].category = event.category;
        }
        return;
      case JobEvent::Kind::kRound:
        return rounds_.End(event.index, lowered_);
    }
  }

  void RunModelTensor(std::uint32_t index) {
    const ModelTensor& tensor = variant_.model_tensors[index];
    const Bytes bytes = placed_.BytesOf(tensor);
    if (bytes <= 0 || blocks_.Of(tensor.storage) != StorageBlocks::kNone) return;
    if (const auto piece = pieces_.find(tensor.piece); piece != pieces_.end()) {
      return blocks_.Share(tensor.storage, piece->second);
    }
    requests_.LeaveCall();
    const std::uint32_t block = requests_.Allocate(bytes, Category::kParameters);
    lowered_.blocks[block].model_tensor = index;
    blocks_.Put(tensor.storage, block);
    if (tensor.piece != 0) pieces_[tensor.piece] = block;
  }

  void RunCall(std::uint32_t index) {
    const CallRecord& record = placed_.call(index);
    if (repetition_) repetition_->BeforeCall(record);
    const Call call(record, placed_.at(), requests_.now().stage);
    call_ = &call;
    requests_.BeginCall(index, record.stream);
    made_.assign(record.fresh.size(), false);
    const OperatorFacts& facts = operators_.Of(variant_.calls[index].op);
    if (facts.rule != nullptr) facts.rule(call, *this);
    for (std::size_t i = 0; i < record.fresh.size(); ++i) Make(i);
    if (!facts.known && requests_.now().step <= 0) {
      ++lowered_.unknown[std::string(call.op())];
    }
    call_ = nullptr;
    requests_.EndCall();
    graphs_.Ran(event_);
  }

  /// What is held under a negative name goes first, then the storage itself, then the rest.
  void RunFree(Storage storage) {
    const std::vector<StorageBlocks::Held> held = blocks_.TakeAllHeld(storage);
    const auto own = std::find_if(held.begin(), held.end(),
                                  [](const StorageBlocks::Held& h) { return h.name >= 0; });
    for (auto h = held.begin(); h != own; ++h) requests_.Release(h->block);
    if (const auto block = blocks_.Leave(storage)) requests_.Release(*block);
    for (auto h = own; h != held.end(); ++h) requests_.Release(h->block);
    if (const auto like_it = like_it_.find(storage); like_it != like_it_.end()) {
      for (const std::uint32_t block : like_it->second) requests_.Release(block);
      like_it_.erase(like_it);
    }
  }

  const Job& job_;
  const Variant& variant_;
  const Gpu& gpu_;
  const LowerOptions options_;
  const AskedWorkspaces* const asked_;
  PlacedJob placed_{job_, variant_, options_.batch};
  const DrawnSizes drawn_{job_, variant_, options_.draw};
  OperatorTable operators_{job_};
  StorageBlocks blocks_;
  /// By piece of memory that several tensors of the model lie in.
  std::unordered_map<std::uint32_t, std::uint32_t> pieces_;
  /// By storage: the blocks of repeated batches that end with it.
  KeptBlocks like_it_;
  /// Where micro-batches of the step end that are looked at.
  RepeatedRounds rounds_;
  /// By key and thread.
  std::set<std::pair<std::string, int>, std::less<>> searched_;
  /// Those that run, and which of them does.
  const std::vector<JobEvent>* events_ = nullptr;
  std::size_t event_ = 0;
  /// The call that runs, and which of its new storages are made.
  const Call* call_ = nullptr;
  std::vector<char> made_;
  Lowered lowered_;
  RequestWriter requests_{lowered_};
  /// Once more steps are asked for than were captured.
  std::optional<Repetition> repetition_;
  GraphPool graphs_{job_, variant_, lowered_, requests_};
};

}  // namespace

Lowered Lower(const Job& job, const Variant& variant, const Gpu& gpu, const LowerOptions& options) {
  return Lowerer(job, variant, gpu, options).Run();
}

}  // namespace plimsoll
