#include "job/transforms/resplit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "job/transforms/accumulate.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// Events of one micro-batch, from its inputs to the next one or to the optimizer's step.
struct MicroBatchSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};
/// The micro-batches of one step.
using StepSpans = std::vector<MicroBatchSpan>;

bool BeginsMicroBatch(const JobEvent& event) {
  return event.kind == JobEvent::Kind::kStage &&
         (event.stage == Stage::kTransfer || event.stage == Stage::kForward);
}

bool IsStage(const JobEvent& event, Stage stage) {
  return event.kind == JobEvent::Kind::kStage && event.stage == stage;
}

/// Finds the micro-batches of one step after the other.
class SpanFinder {
 public:
  void Add(const JobEvent& event, std::size_t at) {
    if (event.kind == JobEvent::Kind::kStep) {
      Finish();
      steps_.emplace_back();
    }
    if (steps_.empty()) return;
    if (BeginsMicroBatch(event) && (!open_ || backward_)) Begin(at);
    if (IsStage(event, Stage::kBackward) && open_) {
      backward_ = true;
      optimizer_between_ = optimizer_between_ || after_update_;
    }
    if (IsStage(event, Stage::kOptimizer) && backward_ && !ended_) End(at);
    updates_ = updates_ || (ended_ && event.kind == JobEvent::Kind::kCall);
  }

  std::vector<StepSpans> Take() {
    Finish();
    return std::move(steps_);
  }

 private:
  void Begin(std::size_t at) {
    StepSpans& spans = steps_.back();
    if (open_ && !ended_) spans.back().end = at;
    after_update_ = updates_;
    spans.push_back({at, at});
    open_ = true;
    backward_ = ended_ = updates_ = false;
  }
  void End(std::size_t at) {
    steps_.back().back().end = at;
    ended_ = true;
  }
  /// A forward after the optimizer's step is no micro-batch; where the optimizer steps between two
  /// backwards, none is.
  void Finish() {
    if (steps_.empty()) return;
    StepSpans& spans = steps_.back();
    if (open_ && !backward_) spans.pop_back();
    if (optimizer_between_) spans.clear();
    for (std::size_t s = 0; s + 1 < spans.size(); ++s) spans[s].end = spans[s + 1].begin;
    open_ = backward_ = ended_ = updates_ = after_update_ = optimizer_between_ = false;
  }

  std::vector<StepSpans> steps_;
  bool open_ = false;
  bool backward_ = false;
  bool ended_ = false;
  /// Something was called after the backward's end.
  bool updates_ = false;
  bool after_update_ = false;
  bool optimizer_between_ = false;
};

/// The positions of its calls.
std::vector<std::size_t> CallsIn(const Variant& variant, const MicroBatchSpan& span) {
  std::vector<std::size_t> calls;
  for (std::size_t i = span.begin; i < span.end; ++i) {
    if (variant.events[i].kind == JobEvent::Kind::kCall) calls.push_back(i);
  }
  return calls;
}

/// What the script does once a step, between the last backward and the optimizer's step (it clips
/// gradients), is no part of the last micro-batch: that ends with what the others do too, or, of
/// two, with the backward's own thread.
void EndLast(const Variant& variant, StepSpans& spans) {
  if (spans.size() < 2) return;
  const auto call_at = [&](std::size_t event) -> const CallRecord& {
    return variant.calls[variant.events[event].index];
  };
  const std::vector<std::size_t> calls = CallsIn(variant, spans.back());
  std::size_t same = 0;
  if (spans.size() > 2) {
    const std::vector<std::size_t> like = CallsIn(variant, spans[1]);
    while (same < std::min(calls.size(), like.size()) &&
           call_at(calls[same]).op == call_at(like[same]).op) {
      ++same;
    }
  } else {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (call_at(calls[i]).thread != 0) same = i + 1;
    }
  }
  if (same < calls.size()) spans.back().end = calls[same];
}

std::vector<StepSpans> SpansIn(const Variant& variant) {
  SpanFinder finder;
  for (std::size_t i = 0; i < variant.events.size(); ++i) finder.Add(variant.events[i], i);
  std::vector<StepSpans> steps = finder.Take();
  for (StepSpans& spans : steps) EndLast(variant, spans);
  return steps;
}

/// What a storage is in its micro-batch: the operator and module that make it, which of its new
/// storages it is, and the how-manieth of these from the end. The first micro-batch alone makes the
/// gradients, and a script may evaluate before it, so that positions from its begin differ.
using Origin = std::tuple<StringId, StringId, std::size_t, std::size_t>;
using Origins = std::map<Origin, Storage>;

Origins OriginsIn(const Variant& variant, const MicroBatchSpan& span) {
  Origins births;
  std::map<std::tuple<StringId, StringId, std::size_t>, std::size_t> seen;
  for (std::size_t i = span.end; i-- > span.begin;) {
    if (variant.events[i].kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = variant.calls[variant.events[i].index];
    for (std::size_t f = 0; f < call.fresh.size(); ++f) {
      const std::size_t nth = seen[{call.op, call.module, f}]++;
      births[{call.op, call.module, f, nth}] = call.fresh[f].storage;
    }
  }
  return births;
}

std::set<Storage> FreedIn(const Variant& variant, const MicroBatchSpan& span) {
  std::set<Storage> freed;
  for (std::size_t i = span.begin; i < span.end; ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind == JobEvent::Kind::kFree) freed.insert(event.index);
  }
  return freed;
}

std::vector<StringId> OperatorsIn(const Variant& variant, const MicroBatchSpan& span) {
  std::vector<StringId> operators;
  for (const std::size_t at : CallsIn(variant, span)) {
    operators.push_back(variant.calls[variant.events[at].index].op);
  }
  return operators;
}

constexpr std::size_t kRepeatsOfLong = 3;

class Resplitter {
 public:
  Resplitter(Job& job, const Variant& old, int micro_batches, std::size_t most_events)
      : old_(old),
        steps_(SpansIn(old)),
        wanted_(static_cast<std::size_t>(micro_batches)),
        is_long_(wanted_ * old.events.size() >
                 most_events * static_cast<std::size_t>(std::max(1, PassesOf(old)))),
        edit_(job, old, "plimsoll.resplit") {}

  Variant Run() {
    std::size_t step = 0;
    std::size_t i = 0;
    while (i < old_.events.size()) {
      if (step < steps_.size() && i == LastKept(steps_[step]).begin) HoldAsTheLast(steps_[step]);
      const bool last = step < steps_.size() && i == LastKept(steps_[step]).end;
      if (!last) {
        Copy(old_.events[i++]);
        continue;
      }
      const StepSpans& spans = steps_[step++];
      held_.clear();
      LeaveOut(spans);
      Repeat(spans);
      i = spans.back().end;
      if (i < old_.events.size()) Copy(old_.events[i++]);
    }
    return edit_.Take();
  }
  /// How many micro-batches of each step are written out, where that is not all of them; else 0.
  std::size_t written() const { return written_; }

 private:
  const MicroBatchSpan& LastKept(const StepSpans& spans) const {
    return spans[std::min(wanted_, spans.size()) - 1];
  }

  /// What a micro-batch leaves that is not the last: it frees its batch before the next one comes.
  /// The last of a step keeps its batch while the optimizer runs. By the numbers of the last.
  std::map<Storage, Storage> FreedUnlessLast(const MicroBatchSpan& other,
                                             const MicroBatchSpan& last) const {
    std::map<Storage, Storage> freed;
    const std::set<Storage> by_other = FreedIn(old_, other), by_last = FreedIn(old_, last);
    const Origins of_last = OriginsIn(old_, last);
    for (const auto& [origin, storage] : OriginsIn(old_, other)) {
      const auto found = of_last.find(origin);
      if (found == of_last.end() || !by_other.contains(storage)) continue;
      if (!by_last.contains(found->second)) freed[found->second] = storage;
    }
    return freed;
  }

  /// Where micro-batches are left out, the last that stays frees no more than the last of all.
  void HoldAsTheLast(const StepSpans& spans) {
    if (wanted_ >= spans.size()) return;
    for (const auto& [of_last, storage] : FreedUnlessLast(LastKept(spans), spans.back())) {
      held_.insert(storage);
    }
  }

  /// The last micro-batch that stays takes the place of the last one of all.
  void LeaveOut(const StepSpans& spans) {
    if (wanted_ >= spans.size()) return;
    const Origins kept = OriginsIn(old_, spans[wanted_ - 1]);
    for (std::size_t s = wanted_; s < spans.size(); ++s) {
      const bool last = s + 1 == spans.size();
      for (const auto& [origin, storage] : OriginsIn(old_, spans[s])) {
        const auto stands_in = kept.find(origin);
        renamed_[storage] = last && stands_in != kept.end() ? Now(stands_in->second) : kElsewhere;
      }
    }
  }

  /// The last one, as often as is wanted; each lets go of what the one before it left. Of many only
  /// three: what lets go of something captured is not what later ones do.
  void Repeat(const StepSpans& spans) {
    const MicroBatchSpan& last = spans.back();
    const Origins left = OriginsIn(old_, spans[spans.size() - 2]);
    const Origins made = OriginsIn(old_, last);
    const std::set<Storage> freed = FreedIn(old_, last);
    const std::map<Storage, Storage> batch = FreedUnlessLast(spans[spans.size() - 2], last);
    std::vector<Storage> of_this;
    for (std::size_t n = spans.size(); n < wanted_; ++n) {
      for (const auto& [of_last, storage] : batch) Free(Now(of_last));
      // By the numbers of the span that is repeated. Gradients are no leftovers.
      std::map<Storage, Storage> before;
      for (const auto& [origin, storage] : left) {
        const auto found = made.find(origin);
        if (found == made.end()) continue;
        if (freed.contains(storage)) {
          before[storage] = Now(found->second);
        } else if (!batch.contains(found->second)) {
          freed_with_[storage].push_back(Now(found->second));
        }
      }
      const std::vector<Storage> of_one_before = std::exchange(of_this, {});
      for (const auto& [origin, storage] : made) {
        renamed_[storage] = of_this.emplace_back(edit_.NewStorageNumber());
      }
      for (const auto& [storage, now] : before) renamed_[storage] = now;
      for (std::size_t i = last.begin; i < last.end; ++i) Copy(old_.events[i]);
      const std::size_t repeats = n + 1 - spans.size();
      if (!is_long_ || repeats > kRepeatsOfLong) continue;
      const bool is_last = repeats == kRepeatsOfLong && n + 1 < wanted_ && AreFreed(of_one_before);
      edit_.EndRound(is_last ? static_cast<int>(wanted_ - n - 1) : 0);
      if (!is_last) continue;
      written_ = n + 1;
      return;
    }
  }

  bool AreFreed(const std::vector<Storage>& storages) const {
    return std::ranges::all_of(storages, [&](Storage s) { return freed_.contains(s); });
  }

  Storage Now(Storage storage) const {
    const auto found = renamed_.find(storage);
    return found == renamed_.end() ? storage : found->second;
  }

  void Copy(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kCall:
        return CopyCall(old_.calls[event.index]);
      case JobEvent::Kind::kFree:
        return CopyFree(event.index);
      case JobEvent::Kind::kLabel:
        return edit_.Label(Now(event.index), event.category);
      default:
        return edit_.Copy(event);
    }
  }

  void CopyFree(Storage storage) {
    if (held_.contains(storage)) return;
    Free(Now(storage));
    if (const auto found = freed_with_.find(storage); found != freed_with_.end()) {
      for (const Storage other : found->second) Free(other);
    }
  }

  void Free(Storage storage) {
    if (storage != kElsewhere && freed_.insert(storage).second) edit_.Free(storage);
  }

  void CopyCall(CallRecord call) {
    for (NewStorage& fresh : call.fresh) fresh.storage = Now(fresh.storage);
    const auto rename = [&](TensorUse& tensor) { tensor.storage = Now(tensor.storage); };
    ForEachArgument(call, rename);
    for (TensorUse& tensor : call.results) rename(tensor);
    edit_.Call(std::move(call));
  }

  const Variant& old_;
  const std::vector<StepSpans> steps_;
  const std::size_t wanted_;
  const bool is_long_;
  /// Of each step, where those are not all.
  std::size_t written_ = 0;
  JobEditor edit_;
  /// What stands for a storage of the capture now; kElsewhere where nothing does.
  std::map<Storage, Storage> renamed_;
  std::set<Storage> freed_;
  /// Not freed in the micro-batch at hand.
  std::set<Storage> held_;
  /// By a storage of the last micro-batch but one that is captured, which lives until the step's
  /// end: those of the micro-batches that were repeated.
  std::map<Storage, std::vector<Storage>> freed_with_;
};

}  // namespace

std::optional<Error> CannotResplit(const Job& job, const Variant& variant) {
  const auto refuse = [&](std::string why) {
    return Error{.message = fmt::format("the script's accumulation stays as it is: {}", why),
                 .file = job.file,
                 .hint = "capture it with one micro-batch a step"};
  };
  const int passes = PassesOf(variant);
  if (variant.passes != passes) {
    return refuse(fmt::format("a step has {} backward passes and {} micro-batch{}", passes,
                              variant.passes, variant.passes == 1 ? "" : "es"));
  }
  for (const StepSpans& spans : SpansIn(variant)) {
    if (spans.size() != static_cast<std::size_t>(passes)) {
      return refuse("its micro-batches are not run one after the other");
    }
    for (std::size_t s = 2; s < spans.size(); ++s) {
      if (OperatorsIn(variant, spans[s]) != OperatorsIn(variant, spans[1])) {
        return refuse("its micro-batches differ");
      }
    }
  }
  return std::nullopt;
}

Variant Resplit(Job& job, const Variant& variant, int micro_batches, std::size_t most_events) {
  if (micro_batches == PassesOf(variant)) return variant;
  Resplitter resplitter(job, variant, micro_batches, most_events);
  Variant made = resplitter.Run();
  made.passes = micro_batches;
  if (resplitter.written() > 0) {
    NoteRepeated(job, micro_batches, static_cast<int>(resplitter.written()));
  }
  return made;
}

}  // namespace plimsoll
