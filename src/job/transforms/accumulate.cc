#include "job/transforms/accumulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "job/transforms/index_set.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/micro_batches.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// Writes every step with another number of micro-batches: the first as it was captured, copies of
/// the last captured one, and the optimizer's step. A storage that is freed `n` micro-batches after
/// its own is freed `n` micro-batches after its own in what is written, too.
class MicroBatchWriter {
 public:
  MicroBatchWriter(Job& job, const Variant& old, const std::vector<MicroBatch>& captured, int count,
                   std::size_t most_events)
      : old_(old),
        captured_(captured),
        count_(count),
        is_long_(std::size_t(count) * old.events.size() > most_events),
        storages_(job, old, captured),
        edit_(job, old, "plimsoll.accumulate"),
        head_(HeadToRepeat(old, captured, storages_)),
        tail_(TailToRepeat(old, captured, storages_)),
        furthest_free_(FurthestFree(old, captured, storages_, head_, tail_)),
        zeroed_before_backward_(ZeroesBeforeBackward(old, captured, storages_)) {
    NoteGradients();
    for (const Part& part : old.later) NoteFreedLater(part);
  }

  Variant Run() {
    CopyEvents(0, captured_.front().begin, 0);
    for (std::size_t i = 0; i < captured_.size(); ++i) {
      BeginMicroBatch();
      gradients_of_step_.clear();
      CopyEvents(captured_[i].begin, captured_[i].backward_end, i);
      FreeOlder(captured_[head_].begin, captured_[head_].backward_end, head_, i);
      RepeatMicroBatches();
      while (!captured_[i].updates) ++i;
      CopyTail(i);
      FreeOlder(captured_[tail_].backward_end, captured_[tail_].end, tail_, i);
    }
    for (Part& part : edit_.variant().later) CopyPart(part);
    return edit_.Take();
  }
  /// How many micro-batches of each step are written out, where that is not all of them; else 0.
  int written() const { return written_; }

 private:
  /// Storages by place, of one micro-batch that was written; kElsewhere where it made none.
  using Made = std::vector<Storage>;

  // Gradients stay where the first micro-batch of a step made them; later ones are added to those.

  void NoteGradients() {
    constexpr std::size_t kNever = static_cast<std::size_t>(-1);
    std::vector<std::size_t> last_touch(old_.storages, kNever);
    for (std::size_t i = captured_[head_].begin; i < captured_[head_].backward_end; ++i) {
      if (old_.events[i].kind != JobEvent::Kind::kCall) continue;
      const CallRecord& call = old_.calls[old_.events[i].index];
      for (const NewStorage& fresh : call.fresh) last_touch[fresh.storage] = i;
      ForEachArgument(call, [&](const TensorUse& tensor) {
        if (storages_.IsMadeIn(tensor.storage, head_)) last_touch[tensor.storage] = i;
      });
    }
    for (Storage storage = 0; storage < last_touch.size(); ++storage) {
      if (last_touch[storage] == kNever || !storages_.IsGradient(storage)) continue;
      added_at_[last_touch[storage]].push_back(storage);
    }
  }

  /// All of the step, where the loop frees them in its next round.
  void FreeGradients() {
    if (!zeroed_before_backward_) return;
    for (const Storage gradient : gradients_of_step_) {
      if (gradient != kElsewhere) FreeOnce(gradient);
    }
  }

  void AddGradients(std::size_t event) {
    const auto found = added_at_.find(event);
    if (found == added_at_.end()) return;
    for (const Storage gradient : found->second) {
      Storage& made = made_.back()[storages_.Find(gradient)->place];
      const Storage sum = SumOf(gradient);
      if (made == kElsewhere || sum == kElsewhere) continue;
      edit_.AddInto(sum, made);
      FreeOnce(std::exchange(made, kElsewhere));
    }
  }

  // Micro-batches as they are written.

  /// All but the first. Of many only as many as differ, and two that do not: what the first frees
  /// of others is not what later ones do.
  void RepeatMicroBatches() {
    const int last = static_cast<int>(furthest_free_) + 2;
    for (int repeat = 1; repeat < count_; ++repeat) {
      if (is_long_ && repeat + 1 >= last) edit_.EndRound(0);
      RepeatEvents(captured_[tail_].backward_end, captured_[tail_].end, tail_);
      BeginMicroBatch();
      RepeatEvents(captured_[head_].begin, captured_[head_].backward_end, head_);
      if (!is_long_ || repeat != last || repeat + 1 == count_ || KeepsOfEach()) continue;
      written_ = repeat + 1;
      return edit_.EndRound(count_ - written_);
    }
  }

  /// Whether anything is left of a micro-batch that no later one frees.
  bool KeepsOfEach() const {
    if (furthest_free_ >= made_.size()) return true;
    return std::ranges::any_of(made_[made_.size() - 1 - furthest_free_], [&](Storage storage) {
      return storage != kElsewhere && !freed_.contains(storage);
    });
  }

  void BeginMicroBatch() {
    made_.emplace_back(storages_.places(), kElsewhere);
    if (made_.size() > captured_.size() + 1) made_.pop_front();
  }

  void NoteMade(Storage old, Storage storage) {
    const std::uint32_t place = storages_.Find(old)->place;
    made_.back()[place] = storage;
    if (const auto kept = all_of_.find(place); kept != all_of_.end()) {
      kept->second.push_back(storage);
    }
  }

  /// The storage that stands for this one, as the captured micro-batch `number` names it, in the
  /// micro-batch that is being written; kElsewhere where there is none.
  Storage Counterpart(Storage storage, std::size_t number) const {
    const LoopStorages::Origin* origin = storages_.Find(storage);
    if (origin == nullptr || origin->micro_batch > number) return kElsewhere;
    const std::size_t before = number - origin->micro_batch;
    return before < made_.size() ? made_[made_.size() - 1 - before][origin->place] : kElsewhere;
  }

  Storage CounterpartOrSelf(Storage storage, std::size_t number) const {
    if (storages_.IsGradient(storage)) return storage;
    const Storage found = Counterpart(storage, number);
    return found == kElsewhere ? storage : found;
  }

  void FreeOnce(Storage storage) {
    if (freed_.Insert(storage)) edit_.Free(storage);
  }

  // As captured.

  void CopyEvents(std::size_t begin, std::size_t end, std::size_t number) {
    for (std::size_t i = begin; i < end; ++i) CopyEvent(old_.events[i], number);
  }

  void CopyTail(std::size_t number) {
    const MicroBatch& at = captured_[number];
    CopyEvents(at.backward_end, storages_.UpdateEnd(number), number);
    FreeGradients();
    CopyEvents(storages_.UpdateEnd(number), at.end, number);
  }

  /// What only later micro-batches free: the captured one at hand has none that is as old.
  void FreeOlder(std::size_t begin, std::size_t end, std::size_t number, std::size_t at_hand) {
    for (std::size_t i = begin; i < end; ++i) {
      const JobEvent& event = old_.events[i];
      const bool frees = event.kind == JobEvent::Kind::kFree;
      const LoopStorages::Origin* origin = frees ? storages_.Find(event.index) : nullptr;
      if (origin != nullptr && number - origin->micro_batch > at_hand) {
        RepeatFree(event.index, number);
      }
    }
  }

  void CopyEvent(const JobEvent& event, std::size_t number) {
    if (event.kind == JobEvent::Kind::kFree) {
      return FreeOnce(CounterpartOrSelf(event.index, number));
    }
    if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
      NoteGradient(event.index);
    }
    if (event.kind != JobEvent::Kind::kCall) return edit_.Copy(event);
    const CallRecord& call = old_.calls[event.index];
    CopyCall(event, number);
    for (const NewStorage& fresh : call.fresh) {
      if (storages_.Find(fresh.storage) != nullptr) NoteMade(fresh.storage, fresh.storage);
    }
  }

  void NoteGradient(Storage gradient) {
    const LoopStorages::Origin* origin = storages_.Find(gradient);
    if (origin == nullptr || !storages_.IsGradient(gradient)) return;
    gradients_of_step_.resize(storages_.places(), kElsewhere);
    gradients_of_step_[origin->place] = gradient;
  }

  void CopyCall(const JobEvent& event, std::size_t number) {
    const auto other = [&](const TensorUse& tensor) {
      return CounterpartOrSelf(tensor.storage, number);
    };
    bool renames = false;
    const CallRecord& call = old_.calls[event.index];
    ForEachArgument(call, [&](const TensorUse& t) { renames |= other(t) != t.storage; });
    if (!renames) return edit_.Copy(event);
    CallRecord renamed = call;
    ForEachArgument(renamed, [&](TensorUse& tensor) { tensor.storage = other(tensor); });
    for (TensorUse& tensor : renamed.results) tensor.storage = other(tensor);
    edit_.Call(std::move(renamed));
  }

  void NoteFreedLater(const Part& part) {
    for (const JobEvent& event : part.events) {
      const bool frees = event.kind == JobEvent::Kind::kFree;
      const LoopStorages::Origin* origin = frees ? storages_.Find(event.index) : nullptr;
      if (origin != nullptr) all_of_[origin->place];
    }
  }

  /// Of what follows the steps: it frees what the last micro-batch left, and what all of them keep.
  void CopyPart(Part& part) {
    std::vector<JobEvent> events = std::exchange(part.events, {});
    std::vector<JobEvent> steps = std::exchange(edit_.variant().events, {});
    const std::size_t last = captured_.size() - 1;
    for (const JobEvent& event : events) {
      const LoopStorages::Origin* origin =
          event.kind == JobEvent::Kind::kFree ? storages_.Find(event.index) : nullptr;
      if (origin != nullptr && !storages_.IsGradient(event.index) && origin->micro_batch == last) {
        for (const Storage storage : all_of_.at(origin->place)) FreeOnce(storage);
      }
      CopyEvent(event, last);
    }
    part.events = std::exchange(edit_.variant().events, std::move(steps));
  }

  // Once more.

  void RepeatEvents(std::size_t begin, std::size_t end, std::size_t number) {
    for (std::size_t i = begin; i < end; ++i) {
      const JobEvent& event = old_.events[i];
      switch (event.kind) {
        case JobEvent::Kind::kCall:
          if (storages_.InEach(i)) RepeatCall(old_.calls[event.index], number);
          break;
        case JobEvent::Kind::kFree:
          RepeatFree(event.index, number);
          break;
        case JobEvent::Kind::kLabel:
          if (event.category == Category::kInputs) {
            edit_.Label(Counterpart(event.index, number), event.category);
          }
          break;
        case JobEvent::Kind::kStage:
          edit_.Copy(event);
          break;
        default:
          break;
      }
      AddGradients(i);
    }
  }

  void RepeatCall(CallRecord call, std::size_t number) {
    for (NewStorage& fresh : call.fresh) {
      const Storage made = edit_.NewStorageNumber();
      NoteMade(fresh.storage, made);
      fresh.storage = made;
    }
    const auto rename = [&](TensorUse& tensor) {
      tensor.storage = Renamed(tensor.storage, number);
    };
    ForEachArgument(call, rename);
    for (TensorUse& tensor : call.results) rename(tensor);
    edit_.Call(std::move(call));
  }

  Storage Renamed(Storage storage, std::size_t number) const {
    const bool is_sum = storages_.IsGradient(storage) && !storages_.IsMadeIn(storage, number);
    const Storage found = is_sum ? SumOf(storage) : Counterpart(storage, number);
    return found == kElsewhere ? storage : found;
  }

  /// Of the step that is being written.
  Storage SumOf(Storage gradient) const {
    const LoopStorages::Origin* origin = storages_.Find(gradient);
    const bool known = origin != nullptr && origin->place < gradients_of_step_.size();
    return known ? gradients_of_step_[origin->place] : kElsewhere;
  }

  void RepeatFree(Storage storage, std::size_t number) {
    // One of this micro-batch alone: the sum of all stays.
    if (storages_.IsGradient(storage)) return;
    const Storage found = Counterpart(storage, number);
    if (found != kElsewhere) FreeOnce(found);
  }

  const Variant& old_;
  const std::vector<MicroBatch>& captured_;
  const int count_;
  const bool is_long_;
  /// Of each step, where those are not all.
  int written_ = 0;
  const LoopStorages storages_;
  JobEditor edit_;
  /// The captured micro-batches whose head and whose tail are repeated.
  const std::size_t head_, tail_;
  const std::size_t furthest_free_;
  const bool zeroed_before_backward_;
  /// By event of the head: the gradients that are complete then.
  std::map<std::size_t, std::vector<Storage>> added_at_;
  /// By place: those that the optimizer will read.
  Made gradients_of_step_;
  /// The last micro-batches, as many as were captured and one more.
  std::deque<Made> made_;
  /// By place, of those that a later part frees: all that was made there.
  HashMap<std::uint32_t, std::vector<Storage>> all_of_;
  IndexSet freed_;
};

/// Behind the first step some micro-batches load a batch and some go on with that of the step
/// before, as where a rollout is used for two updates.
bool SomeLoadNoBatch(const Variant& variant) {
  const std::vector<MicroBatch> captured = MicroBatchesIn(variant);
  std::array<bool, 2> seen = {};
  for (std::size_t i = 1; i < captured.size(); ++i) {
    const auto first = std::find_if(
        variant.events.begin() + static_cast<std::ptrdiff_t>(captured[i].begin),
        variant.events.end(), [](const JobEvent& e) { return e.kind == JobEvent::Kind::kStage; });
    seen[first->stage == Stage::kTransfer ? 1 : 0] = true;
  }
  return seen[0] && seen[1];
}

}  // namespace

int PassesOf(const Variant& variant) {
  int passes = 0;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep) passes = 0;
    if (event.kind == JobEvent::Kind::kStage && event.stage == Stage::kBackward) ++passes;
  }
  return passes;
}

std::optional<Error> CannotAccumulate(const Job& job, const Variant& variant) {
  const int passes = PassesOf(variant);
  if (passes == 1 && !SomeLoadNoBatch(variant)) return std::nullopt;
  if (passes == 1) {
    return Error{.message =
                     "the captured steps cannot be split into micro-batches: some load no "
                     "batch, and use that of the step before",
                 .file = job.file,
                 .hint = "give a smaller batch"};
  }
  return Error{.message = passes == 0 ? "the captured step has no backward to repeat"
                                      : "the captured step accumulates gradients already",
               .file = job.file,
               .hint = passes == 0 ? "capture a training step" : "capture it with accumulate=1"};
}

void NoteRepeated(Job& job, int passes, int written) {
  std::string note = fmt::format(
      "with {} micro-batches a step is long: of each step the first {} are in the events, the "
      "snapshot and the page, and the others do what the last of these does",
      passes, written);
  if (std::ranges::find(job.notes, note) == job.notes.end()) job.notes.push_back(std::move(note));
}

Variant AddAccumulation(Job& job, const Variant& variant, int passes, std::size_t most_events) {
  const std::vector<MicroBatch> captured = MicroBatchesIn(variant);
  if (passes < 2 || captured.empty() || PassesOf(variant) != 1) return variant;
  MicroBatchWriter writer(job, variant, captured, passes, most_events);
  Variant made = writer.Run();
  made.passes = passes;
  if (writer.written() > 0) NoteRepeated(job, passes, writer.written());
  return made;
}

}  // namespace plimsoll
