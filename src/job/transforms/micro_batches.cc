#include "job/transforms/micro_batches.h"

#include <algorithm>
#include <string_view>

#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

bool Begins(const JobEvent& event, Stage stage) {
  return event.kind == JobEvent::Kind::kStage && event.stage == stage;
}

bool BeginsBatch(const JobEvent& event) {
  return Begins(event, Stage::kTransfer) || Begins(event, Stage::kForward);
}

/// The micro-batches of the step that is events [begin, end).
std::vector<MicroBatch> MicroBatchesOfStep(const std::vector<JobEvent>& events, std::size_t begin,
                                           std::size_t end) {
  std::vector<MicroBatch> found;
  bool in_backward = false;
  // Where a next micro-batch may have begun. A forward after the last backward is of the tail.
  std::size_t next = begin;
  for (std::size_t i = begin; i < end; ++i) {
    if (next == end && BeginsBatch(events[i])) next = i;
    in_backward |= Begins(events[i], Stage::kBackward);
    if (!in_backward || !Begins(events[i], Stage::kOptimizer)) continue;
    if (next == end) return {};  // two backwards of one batch
    if (!found.empty()) found.back().end = next;
    found.push_back({.begin = next, .backward_end = i, .end = end});
    in_backward = false;
    next = end;
  }
  if (!found.empty()) found.back().updates = true;
  return found;
}

/// What the loop makes and frees: by place, how many micro-batches before that it was made.
using Frees = std::map<std::uint32_t, std::size_t>;

/// Of events [begin, end), which are of the captured micro-batch `number`.
Frees FreesOf(const Variant& variant, const LoopStorages& storages, std::size_t number,
              std::size_t begin, std::size_t end) {
  Frees frees;
  for (std::size_t i = begin; i < end; ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind != JobEvent::Kind::kFree || storages.IsGradient(event.index)) continue;
    const LoopStorages::Origin* origin = storages.Find(event.index);
    if (origin != nullptr) frees[origin->place] = number - origin->micro_batch;
  }
  return frees;
}

bool Includes(const Frees& all, const Frees& some) {
  return std::ranges::all_of(some, [&](const auto& freed) {
    const auto found = all.find(freed.first);
    return found != all.end() && found->second == freed.second;
  });
}

bool Zeroes(std::string_view op) {
  const std::string_view name = BaseName(op);
  return name == "zero_" || name == "_foreach_zero_";
}

}  // namespace

std::vector<MicroBatch> MicroBatchesIn(const Variant& variant) {
  std::vector<std::size_t> steps;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    if (variant.events[i].kind == JobEvent::Kind::kStep) steps.push_back(i);
  }
  steps.push_back(variant.events.size());
  std::vector<MicroBatch> all;
  for (std::size_t s = 0; s + 1 < steps.size(); ++s) {
    const std::vector<MicroBatch> found =
        MicroBatchesOfStep(variant.events, steps[s], steps[s + 1]);
    if (found.empty()) return {};
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

LoopStorages::LoopStorages(const Job& job, const Variant& variant,
                           const std::vector<MicroBatch>& micro_batches)
    : job_(job), variant_(variant), origins_(variant.storages) {
  FindGradients(micro_batches);
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    const MicroBatch& one = micro_batches[i];
    FindZeroing(one);
    update_end_.push_back(one.backward_end);
    NotePlaces(one.begin, one.backward_end, i, kHead);
    if (one.updates) FindUpdate(one);
    NotePlaces(one.backward_end, one.end, i, kTail);
  }
}

const LoopStorages::Origin* LoopStorages::Find(Storage storage) const {
  const bool known = storage < origins_.size() && origins_[storage].place != Origin::kNoPlace;
  return known ? &origins_[storage] : nullptr;
}

void LoopStorages::FindGradients(const std::vector<MicroBatch>& micro_batches) {
  for (const JobEvent& event : variant_.events) {
    if (event.kind != JobEvent::Kind::kLabel) continue;
    if (event.category == Category::kGradients) gradients_.Insert(event.index);
    if (event.category == Category::kOptimizerState) state_.Insert(event.index);
  }
  // FSDP frees a whole gradient within its backward: its shard stays.
  for (const MicroBatch& one : micro_batches) {
    IndexSet made;
    for (std::size_t i = one.begin; i < one.backward_end; ++i) {
      const JobEvent& event = variant_.events[i];
      if (event.kind == JobEvent::Kind::kCall) {
        for (const NewStorage& fresh : variant_.calls[event.index].fresh)
          made.Insert(fresh.storage);
      }
      if (event.kind == JobEvent::Kind::kFree && made.contains(event.index)) {
        gradients_.Erase(event.index);
      }
    }
  }
}

/// `zero_grad(set_to_none=False)` before the backward belongs to the optimizer's step.
void LoopStorages::FindZeroing(const MicroBatch& micro_batch) {
  for (std::size_t i = micro_batch.begin; i < micro_batch.backward_end; ++i) {
    if (variant_.events[i].kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = variant_.calls[variant_.events[i].index];
    if (Zeroes(job_.strings[call.op]) && TakesGradientOrState(call)) of_update_.Insert(i);
  }
}

bool LoopStorages::TakesGradientOrState(const CallRecord& call) const {
  bool takes = false;
  ForEachArgument(call, [&](const TensorUse& tensor) {
    takes |= gradients_.contains(tensor.storage) || state_.contains(tensor.storage);
  });
  for (const NewStorage& fresh : call.fresh) takes |= state_.contains(fresh.storage);
  return takes;
}

/// Which calls of a tail belong to the optimizer's step: all that take gradients or its state, and
/// what these need or give. What computes with results of the forward (a metric) does not.
void LoopStorages::FindUpdate(const MicroBatch& micro_batch) {
  std::size_t last_update = micro_batch.backward_end;
  const auto is_call = [&](std::size_t i) {
    return variant_.events[i].kind == JobEvent::Kind::kCall;
  };
  for (std::size_t i = micro_batch.backward_end; i < micro_batch.end; ++i) {
    if (is_call(i) && TakesGradientOrState(variant_.calls[variant_.events[i].index])) {
      last_update = i;
    }
  }
  MadeInTail made;
  for (std::size_t i = micro_batch.backward_end; i < micro_batch.end; ++i) {
    if (!is_call(i)) continue;
    const bool of_update = IsOfUpdate(i, last_update, made);
    if (of_update) of_update_.Insert(i);
    for (const NewStorage& fresh : variant_.calls[variant_.events[i].index].fresh) {
      (of_update ? made.by_update : made.by_loop).Insert(fresh.storage);
    }
  }
  const auto ends = [&](std::size_t i) {
    const JobEvent& event = variant_.events[i];
    return event.kind == JobEvent::Kind::kLabel ||
           (event.kind == JobEvent::Kind::kFree && made.by_update.contains(event.index));
  };
  std::size_t end = last_update + 1;
  while (end < micro_batch.end && ends(end)) ++end;
  update_end_.back() = end;
}

bool LoopStorages::IsOfUpdate(std::size_t event, std::size_t last_update,
                              const MadeInTail& made) const {
  const CallRecord& call = variant_.calls[variant_.events[event].index];
  if (TakesGradientOrState(call)) return true;
  bool on_device = false, of_loop = false, of_update = false;
  ForEachArgument(call, [&](const TensorUse& tensor) {
    on_device |= tensor.storage != kElsewhere;
    of_loop |= Find(tensor.storage) != nullptr || made.by_loop.contains(tensor.storage);
    of_update |= made.by_update.contains(tensor.storage);
  });
  if (of_loop || of_update) return of_update;
  // Others read parameters alone (an averaged model), or nothing (constants of the optimizer).
  const std::string_view op = job_.strings[call.op];
  return on_device || event < last_update || op.starts_with("plimsoll.");
}

void LoopStorages::NotePlaces(std::size_t begin, std::size_t end, std::size_t number, Half half) {
  std::map<std::tuple<StringId, StringId, StringId>, std::uint32_t> times;
  for (std::size_t i = begin; i < end; ++i) {
    if (variant_.events[i].kind != JobEvent::Kind::kCall || !InEach(i)) continue;
    const CallRecord& call = variant_.calls[variant_.events[i].index];
    const std::uint32_t nth = times[{call.op, call.where, call.module}]++;
    for (std::size_t f = 0; f < call.fresh.size(); ++f) {
      const Place place = {half, call.op, call.where, call.module, nth, f};
      const auto at =
          place_of_.emplace(place, static_cast<std::uint32_t>(place_of_.size())).first->second;
      origins_.at(call.fresh[f].storage) = {.micro_batch = number, .place = at};
    }
  }
}

std::size_t HeadToRepeat(const Variant& variant, const std::vector<MicroBatch>& captured,
                         const LoopStorages& storages) {
  const std::size_t last = captured.size() - 1;
  if (last == 0) return last;
  const auto frees = [&](std::size_t i) {
    return FreesOf(variant, storages, i, captured[i].begin, captured[i].backward_end);
  };
  return Includes(frees(last), frees(last - 1)) ? last : last - 1;
}

std::size_t TailToRepeat(const Variant& variant, const std::vector<MicroBatch>& captured,
                         const LoopStorages& storages) {
  const std::size_t last = captured.size() - 1;
  if (last == 0) return last;
  if (!captured[last - 1].updates) return last - 1;
  const auto frees = [&](std::size_t i) {
    return FreesOf(variant, storages, i, captured[i].backward_end, captured[i].end);
  };
  const Frees of_last = frees(last), before = frees(last - 1);
  const bool frees_too_much = std::ranges::any_of(of_last, [&](const auto& freed) {
    return !before.contains(freed.first) && freed.second < 2;
  });
  return Includes(of_last, before) && !frees_too_much ? last : last - 1;
}

std::size_t FurthestFree(const Variant& variant, const std::vector<MicroBatch>& captured,
                         const LoopStorages& storages, std::size_t head, std::size_t tail) {
  std::size_t furthest = 1;
  const auto look = [&](std::size_t begin, std::size_t end, std::size_t next) {
    for (std::size_t i = begin; i < end; ++i) {
      if (variant.events[i].kind != JobEvent::Kind::kFree) continue;
      const LoopStorages::Origin* origin = storages.Find(variant.events[i].index);
      if (origin != nullptr && origin->micro_batch < next) {
        furthest = std::max(furthest, next - origin->micro_batch);
      }
    }
  };
  look(captured[head].begin, captured[head].backward_end, head);
  look(captured[tail].backward_end, captured[tail].end, tail + 1);
  return furthest;
}

bool ZeroesBeforeBackward(const Variant& variant, const std::vector<MicroBatch>& captured,
                          const LoopStorages& storages) {
  for (std::size_t number = 0; number < captured.size(); ++number) {
    for (std::size_t i = captured[number].begin; i < captured[number].backward_end; ++i) {
      const JobEvent& event = variant.events[i];
      if (event.kind != JobEvent::Kind::kFree || !storages.IsGradient(event.index)) continue;
      const LoopStorages::Origin* origin = storages.Find(event.index);
      if (origin != nullptr && origin->micro_batch < number) return true;
    }
  }
  return false;
}

}  // namespace plimsoll
