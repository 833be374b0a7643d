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

/// Where the captured steps begin and end in the events.
struct StepSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

StepSpan AllOf(const std::vector<JobEvent>& events) { return {.begin = 0, .end = events.size()}; }

std::vector<StepSpan> FindSteps(const Variant& variant) {
  std::vector<StepSpan> spans;
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

/// A storage, and by what it can be known again in another step.
struct MadeStorage {
  Storage storage = 0;
  StringId op;
  StringId where;
  std::int64_t bytes = 0;

  bool Like(const MadeStorage& other) const { return op == other.op && bytes == other.bytes; }
};

std::vector<MadeStorage> MadeIn(const Variant& variant, const std::vector<JobEvent>& events,
                                const StepSpan& span) {
  std::vector<MadeStorage> made;
  for (std::size_t i = span.begin; i < span.end; ++i) {
    if (events[i].kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = variant.calls[events[i].index];
    for (const NewStorage& fresh : call.fresh) {
      made.push_back({.storage = fresh.storage,
                      .op = call.op,
                      .where = call.where,
                      .bytes = fresh.bytes.least()});
    }
  }
  return made;
}

/// How far rounds of a loop are apart that are run, where each makes so many requests.
std::int64_t RoundsApart(std::size_t requests, std::int64_t times) {
  const auto most = static_cast<std::int64_t>(kMostGrowing / std::max<std::size_t>(requests, 1));
  return CeilDiv(times, std::max<std::int64_t>(most, 1));
}

/// Blocks that lose their name though they stay, by the storage whose end is theirs.
using KeptBlocks = std::unordered_map<Storage, std::vector<std::uint32_t>>;

/// Storages of one step, each with the one that stands for it in the next. Either may have made
/// more: the step before as DDP lays out its buckets there, the next as it generates what it and
/// further steps train with. Steps are alike at their ends, where gradients are made.
std::vector<std::pair<Storage, Storage>> Counterparts(const std::vector<MadeStorage>& older,
                                                      const std::vector<MadeStorage>& last) {
  std::vector<std::pair<Storage, Storage>> pairs;
  // Sizes that the data decide differ from step to step.
  const bool alike = std::ranges::equal(older, last, {}, &MadeStorage::op, &MadeStorage::op);
  std::size_t before_end = 0;
  const std::size_t most = std::min(older.size(), last.size());
  while (!alike && before_end < most &&
         older[older.size() - before_end - 1].Like(last[last.size() - before_end - 1])) {
    ++before_end;
  }
  std::size_t next = 0;
  const std::size_t older_end = older.size() - before_end;
  for (std::size_t i = 0; i + before_end < last.size(); ++i) {
    std::size_t found = next;
    while (found < older_end && !alike && !older[found].Like(last[i])) ++found;
    if (found == older_end) continue;
    pairs.emplace_back(older[found].storage, last[i].storage);
    next = found + 1;
  }
  for (std::size_t i = before_end; i > 0; --i) {
    pairs.emplace_back(older[older.size() - i].storage, last[last.size() - i].storage);
  }
  return pairs;
}

/// What the step before let go itself, and the last one did not: the capture ended before that. A
/// loader that has no more batches leaves a loop before `zero_grad` at its top. In the order in
/// which it goes.
std::vector<Storage> LeftOverOf(const std::vector<JobEvent>& events, const StepSpan& before,
                                const std::vector<MadeStorage>& older, const StepSpan& at_last,
                                const std::vector<MadeStorage>& last) {
  // The step before may have made more, as DDP lays out its buckets there.
  std::unordered_map<Storage, Storage> counterparts;
  for (const auto& pair : Counterparts(older, last)) counterparts.insert(pair);
  std::unordered_set<Storage> gone;
  for (std::size_t i = at_last.begin; i < at_last.end; ++i) {
    if (events[i].kind == JobEvent::Kind::kFree) gone.insert(events[i].index);
  }
  std::vector<Storage> left;
  for (std::size_t i = before.begin; i < before.end; ++i) {
    if (events[i].kind != JobEvent::Kind::kFree) continue;
    const auto found = counterparts.find(events[i].index);
    if (found != counterparts.end() && !gone.contains(found->second)) left.push_back(found->second);
  }
  return left;
}

bool BothStay(const StorageBlocks& blocks, const std::pair<Storage, Storage>& pair) {
  return blocks.Of(pair.first) != StorageBlocks::kNone &&
         blocks.Of(pair.second) != StorageBlocks::kNone;
}

/// Before the last captured step runs once more: what it calls a storage of the step before is
/// now that storage's counterpart in itself.
void Shift(StorageBlocks& blocks, const std::vector<MadeStorage>& older,
           const std::vector<MadeStorage>& last, KeptBlocks* kept = nullptr) {
  for (const auto& pair : Counterparts(older, last)) {
    if (kept != nullptr && BothStay(blocks, pair)) {
      (*kept)[pair.second].push_back(blocks.Of(pair.first));
    }
    blocks.Move(pair.second, pair.first);
  }
}

/// Before that: what the last step lets go of the step two before it, as one that keeps its last
/// two losses does, is now what the step before keeps in its place.
void ShiftLetGo(StorageBlocks& blocks, const std::vector<JobEvent>& events,
                const std::vector<MadeStorage>& oldest, const std::vector<MadeStorage>& older,
                const StepSpan& before, const StepSpan& at_last) {
  std::unordered_set<Storage> gone;
  for (const StepSpan& span : {before, at_last}) {
    for (std::size_t i = span.begin; i < span.end; ++i) {
      if (events[i].kind == JobEvent::Kind::kFree) gone.insert(events[i].index);
    }
  }
  // What the two do alike: at its end the first step makes the optimizer's state.
  for (std::size_t i = 0; i < std::min(oldest.size(), older.size()); ++i) {
    const Storage storage = oldest[i].storage, newer = older[i].storage;
    if (oldest[i].op != older[i].op) return;
    if (gone.contains(storage) && !gone.contains(newer) &&
        blocks.Of(storage) == StorageBlocks::kNone) {
      blocks.Move(newer, storage);
    }
  }
}

/// The last captured step, run again as a later one. What it keeps loses its name then, as its
/// successor has it; where the keeper has room for so many steps only, the oldest goes.
class Repetition {
 public:
  Repetition(const Job& job, const Variant& variant, const std::vector<StepSpan>& steps,
             StorageBlocks& blocks, RequestWriter& requests)
      : job_(job), variant_(variant), steps_(steps), blocks_(blocks), requests_(requests) {
    for (const StepSpan& step : steps_) made_.push_back(MadeIn(variant, variant.events, step));
  }

  /// Of the step before: to be freed first.
  std::vector<Storage> LeftOver() const {
    return LeftOverOf(variant_.events, steps_[steps_.size() - 2], older(), steps_.back(),
                      made_.back());
  }

  /// As the step of this number.
  void Begin(int number) {
    if (steps_.size() > 2) {
      ShiftLetGo(blocks_, variant_.events, made_[made_.size() - 3], older(),
                 steps_[steps_.size() - 2], steps_.back());
    }
    if (most() > 0) NoteKept(number);
    Shift(blocks_, older(), made_.back());
    if (most() > 0 && job_.keeper->before) lets_go_of_ = number - most();
  }

  /// What the step makes may take the place of what goes.
  void BeforeCall(const CallRecord& call) {
    if (!lets_go_of_) return;
    const bool is_kept = std::ranges::any_of(
        call.fresh, [&](const NewStorage& fresh) { return keeps_.contains(fresh.storage); });
    if (is_kept) LetGo(*std::exchange(lets_go_of_, std::nullopt));
  }

  void End(int number) {
    lets_go_of_.reset();
    if (most() > 0) LetGo(number - most());
  }

 private:
  const std::vector<MadeStorage>& older() const { return made_[made_.size() - 2]; }
  std::int64_t most() const { return job_.keeper ? job_.keeper->most : 0; }

  /// What stays of the step before the last one.
  void NoteKept(int number) {
    std::vector<Storage> kept;
    for (const auto& pair : Counterparts(older(), made_.back())) {
      if (!BothStay(blocks_, pair)) continue;
      kept.push_back(pair.first);
      keeps_.insert(pair.second);
    }
    if (number == static_cast<int>(steps_.size())) NoteKeptBefore({kept.begin(), kept.end()});
    for (const Storage storage : kept) Lose(storage, number - 2);
  }

  /// Of the captured steps before those two what is like that. The first makes more that stays.
  void NoteKeptBefore(const std::unordered_set<Storage>& kept) {
    std::multiset<std::pair<StringId, StringId>> known;
    for (const MadeStorage& made : older()) {
      if (kept.contains(made.storage)) known.emplace(made.op, made.where);
    }
    for (std::size_t step = 0; step + 2 < made_.size(); ++step) {
      auto left = known;
      for (const MadeStorage& made : made_[step]) {
        const auto like = left.find({made.op, made.where});
        if (like == left.end() || blocks_.Of(made.storage) == StorageBlocks::kNone) continue;
        left.erase(like);
        Lose(made.storage, static_cast<std::int64_t>(step));
      }
    }
  }

  void Lose(Storage storage, std::int64_t step) {
    std::vector<std::uint32_t>& blocks = kept_of_steps_[step];
    for (const StorageBlocks::Held& held : blocks_.TakeAllHeld(storage)) {
      blocks.push_back(held.block);
    }
    if (const auto block = blocks_.Leave(storage)) blocks.push_back(*block);
  }

  /// Of what is kept of this step, and of those before it.
  void LetGo(std::int64_t step) {
    while (!kept_of_steps_.empty() && kept_of_steps_.begin()->first <= step) {
      for (const std::uint32_t block : kept_of_steps_.begin()->second) requests_.Release(block);
      kept_of_steps_.erase(kept_of_steps_.begin());
    }
  }

  const Job& job_;
  const Variant& variant_;
  const std::vector<StepSpan> steps_;
  StorageBlocks& blocks_;
  RequestWriter& requests_;
  /// By captured step.
  std::vector<std::vector<MadeStorage>> made_;
  std::map<std::int64_t, std::vector<std::uint32_t>> kept_of_steps_;
  /// Of the last captured step: what is kept. Before it makes the first of them, it lets go of what
  /// is kept of a step, where there is one.
  std::unordered_set<Storage> keeps_;
  std::optional<std::int64_t> lets_go_of_;
};

/// That of the two sizes that is asked for, and whether that made a difference.
Bytes Estimated(const Workspace& workspace, Estimate estimate, Lowered& lowered) {
  lowered.certain &= workspace.likely == workspace.upper;
  return estimate == Estimate::kUpper ? workspace.upper : workspace.likely;
}

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
      facts_.push_back(FactsOf(job.strings[call.op]));
      streams = std::max<std::size_t>(streams, call.stream + std::size_t{1});
    }
    lowered_.workload.streams.resize(streams);
    std::iota(lowered_.workload.streams.begin(), lowered_.workload.streams.end(), 0);
  }

  Lowered Run() {
    const std::vector<StepSpan> steps = FindSteps(variant_);
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
  void RunEvents(const std::vector<JobEvent>& events, const StepSpan& span) {
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
    for (; times > 0 && lowered_.moments.size() < kMostRepeated; --times) {
      const Bytes held = requests_.held();
      Shift(blocks_, MadeIn(variant_, before.events, AllOf(before.events)),
            MadeIn(variant_, last.events, AllOf(last.events)), &like_it_);
      requests_.BeginStage(last.stage);
      RunEvents(last.events, AllOf(last.events));
      if (requests_.held() <= held) return;
    }
    lowered_.left_out += times;
  }

  /// The further rounds of a loop whose numbers grow. `requests`: those of one.
  void RepeatGrowing(std::size_t index, std::size_t requests, std::int64_t times) {
    const Part& last = variant_.later[index];
    const auto made = [&](const Part& part) {
      return MadeIn(variant_, part.events, AllOf(part.events));
    };
    const std::vector<MadeStorage> oldest = made(variant_.later[index - 2]);
    const std::vector<MadeStorage> older = made(variant_.later[index - 1]);
    const std::vector<MadeStorage> newest = made(last);
    GrowingPart growing(variant_, variant_.later[index - 1], last, placed_.at());
    lowered_.rounds += times;
    std::int64_t apart = 1;
    for (std::int64_t round = 0; round < times;) {
      round = std::min(round + apart, times);
      const Bytes held = requests_.held();
      Shift(blocks_, oldest, older, &like_it_);
      Shift(blocks_, older, newest, &like_it_);
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
    if (facts_[index].rule != nullptr) facts_[index].rule(call, *this);
    for (std::size_t i = 0; i < record.fresh.size(); ++i) Make(i);
    if (!facts_[index].known && requests_.now().step <= 0) {
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
  /// By call.
  std::vector<OperatorFacts> facts_;
  StorageBlocks blocks_;
  /// By piece of memory that several tensors of the model lie in.
  std::unordered_map<std::uint32_t, std::uint32_t> pieces_;
  /// By storage: the blocks of repeated batches that end with it.
  KeptBlocks like_it_;
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
