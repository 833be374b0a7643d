#include "job/transforms/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>

#include "job/transforms/held_by_variables.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr std::size_t kNotFreed = static_cast<std::size_t>(-1);

/// When each storage is made, used and freed: indices of events.
struct Lives {
  explicit Lives(const Variant& variant)
      : freed(variant.storages, kNotFreed), uses(variant.storages), held(HeldByVariables(variant)) {
    for (std::size_t i = 0; i < variant.events.size(); ++i) {
      const JobEvent& event = variant.events[i];
      if (event.kind == JobEvent::Kind::kFree) freed[event.index] = i;
      if (event.kind != JobEvent::Kind::kCall) continue;
      const CallRecord& call = variant.calls[event.index];
      ForEachArgument(call, [&](const TensorUse& tensor) { uses[tensor.storage].push_back(i); });
    }
  }
  std::vector<std::size_t> freed;
  std::vector<std::vector<std::size_t>> uses;
  std::vector<std::size_t> held;
};

/// Finds what checkpointing changes in each forward of a segment.
class SegmentFinder {
 public:
  SegmentFinder(const Job& job, const Variant& variant, const CheckpointSegments& segments)
      : job_(job), variant_(variant), segments_(segments), lives_(variant) {
    for (std::size_t i = 0; i < segments.size(); ++i) {
      for (const std::string& module : segments[i].modules) segments_with_[module].push_back(i);
    }
  }

  std::vector<CheckpointedForward> Run() {
    std::vector<CheckpointedForward> found = Forwards();
    for (CheckpointedForward& one : found) Study(one);
    std::erase_if(found, [](const auto& one) { return one.first_need == kNotFreed; });
    return found;
  }

 private:
  std::vector<CheckpointedForward> Forwards() {
    std::vector<CheckpointedForward> done;
    std::map<std::size_t, CheckpointedForward> open;
    Stage stage = Stage::kUnknown;
    for (std::size_t i = 0; i < variant_.events.size(); ++i) {
      const JobEvent& event = variant_.events[i];
      if (event.kind == JobEvent::Kind::kStage) {
        stage = event.stage;
        if (stage == Stage::kBackward) {
          for (auto& [segment, one] : open) {
            one.segment = segment;
            one.backward = i;
            done.push_back(std::move(one));
          }
        }
        open.clear();
      }
      if (event.kind != JobEvent::Kind::kCall || stage != Stage::kForward) continue;
      for (const std::size_t segment : SegmentsOf(variant_.calls[event.index])) {
        open[segment].calls.push_back(i);
      }
    }
    return done;
  }

  /// Those in which the call's module is, or a module that it is part of.
  const std::vector<std::size_t>& SegmentsOf(const CallRecord& call) {
    const std::string_view module = job_.strings[call.module];
    const auto [found, added] = of_module_.try_emplace(module);
    if (!added) return found->second;
    ForEachModuleAround(module, [&](std::string_view around) {
      const auto with = segments_with_.find(around);
      if (with == segments_with_.end()) return;
      found->second.insert(found->second.end(), with->second.begin(), with->second.end());
    });
    return found->second;
  }

  bool IsOf(std::size_t event, std::size_t segment) {
    const std::vector<std::size_t>& all = SegmentsOf(variant_.calls[variant_.events[event].index]);
    return std::find(all.begin(), all.end(), segment) != all.end();
  }

  void Study(CheckpointedForward& one) {
    const std::set<std::size_t> own(one.calls.begin(), one.calls.end());
    one.kept = FindKept(job_, variant_, one.calls, segments_[one.segment].kept);
    for (const std::size_t i : one.calls) {
      const bool kept = one.kept.contains(i);
      for (const NewStorage& fresh : variant_.calls[variant_.events[i].index].fresh) {
        kept ? StudyKept(fresh.storage, one) : StudySaved(fresh.storage, i, own, one);
      }
    }
    if (one.first_need == kNotFreed) return;
    FindInputs(one);
    one.stop = StopOf(one);
  }

  /// What nothing outside reads before the backward is dropped. What is read outside too stays for
  /// those who read it, and the segment's own backward works on a copy.
  void StudySaved(Storage storage, std::size_t made, const std::set<std::size_t>& own,
                  CheckpointedForward& one) {
    const std::size_t freed = lives_.freed[storage];
    if (freed == kNotFreed || freed < one.backward) return;
    CheckpointedForward::Copy copy{
        .storage = storage, .own_uses = {}, .released = one.backward - 1, .freed = freed};
    std::size_t last = made;
    bool outside = false;
    for (const std::size_t use : lives_.uses[storage]) {
      if (use < one.backward) {
        last = std::max(last, use);
        outside |= !own.contains(use);
      } else if (IsOf(use, one.segment)) {
        copy.own_uses.push_back(use);
      } else {
        copy.released = std::max(copy.released, use);
      }
    }
    if (!outside) {
      if (lives_.held[storage] > last) {
        last = lives_.held[storage];
        one.in_variables.insert(storage);
      }
      one.dropped[storage] = IsCastOfParameter(made) ? one.backward - 1 : last;
      for (const std::size_t use : lives_.uses[storage]) {
        if (use > one.backward) Need(one, use);
      }
      Need(one, freed);
    } else if (!copy.own_uses.empty()) {
      for (const std::size_t use : copy.own_uses) Need(one, use);
      one.copied.push_back(std::move(copy));
    }
  }

  /// The backward asks the checkpoint for all that was saved, and the first question repeats the
  /// segment, also where what is asked for was kept.
  void StudyKept(Storage storage, CheckpointedForward& one) {
    const std::size_t freed = lives_.freed[storage];
    if (freed == kNotFreed) return;
    if (freed < one.backward) {
      one.kept_passing[storage] = freed;
      return;
    }
    for (const std::size_t use : lives_.uses[storage]) {
      if (use < one.backward || !IsOf(use, one.segment)) continue;
      one.kept_saved.insert(storage);
      Need(one, use);
    }
  }

  /// Autocast keeps the weights that it casts until it ends.
  bool IsCastOfParameter(std::size_t event) const {
    const CallRecord& call = variant_.calls[variant_.events[event].index];
    bool of_parameter = false;
    ForEachArgument(call, [&](const TensorUse& tensor) { of_parameter |= tensor.parameter; });
    return of_parameter && call.args.size() == 1;
  }

  static void Need(CheckpointedForward& one, std::size_t event) {
    one.first_need = std::min(one.first_need, event);
    one.last_need = std::max(one.last_need, event);
  }

  void FindInputs(CheckpointedForward& one) const {
    std::set<Storage> known;
    for (const std::size_t i : one.calls) {
      const CallRecord& call = variant_.calls[variant_.events[i].index];
      ForEachArgument(call, [&](const TensorUse& tensor) {
        const Storage storage = tensor.storage;
        if (storage == kElsewhere || !known.insert(storage).second) return;
        if (lives_.freed[storage] != kNotFreed) {
          one.inputs.push_back({.storage = storage, .freed = lives_.freed[storage]});
        }
      });
      for (const NewStorage& fresh : call.fresh) known.insert(fresh.storage);
    }
  }

  /// The last call that makes something that is needed, or writes into it.
  std::size_t StopOf(const CheckpointedForward& one) const {
    for (auto i = one.calls.rbegin(); i != one.calls.rend(); ++i) {
      const CallRecord& call = variant_.calls[variant_.events[*i].index];
      const bool makes = std::any_of(call.fresh.begin(), call.fresh.end(), [&](const auto& fresh) {
        return one.Needs(fresh.storage) || one.kept_saved.contains(fresh.storage);
      });
      const std::optional<Storage> written = WrittenBy(job_, call);
      if (makes || (written && one.Needs(*written))) return *i;
    }
    return one.calls.front();
  }

  const Job& job_;
  const Variant& variant_;
  const CheckpointSegments& segments_;
  Lives lives_;
  std::map<std::string, std::vector<std::size_t>, std::less<>> segments_with_;
  std::map<std::string_view, std::vector<std::size_t>> of_module_;
};

/// Writes the variant anew.
class Checkpointer {
 public:
  Checkpointer(Job& job, const Variant& old, std::vector<CheckpointedForward> found)
      : old_(old),
        found_(std::move(found)),
        edit_(job, old, "plimsoll.checkpoint"),
        kept_op_(job.strings.Intern("plimsoll.kept_")) {
    for (const CheckpointedForward& one : found_) {
      needs_[one.first_need].push_back(&one);
      for (const bool in_variables : {false, true}) {  // these go as the function returns
        for (const auto& [storage, last] : one.dropped) {
          if (one.in_variables.contains(storage) != in_variables) continue;
          frees_after_[last].push_back(storage);
        }
      }
      for (const CheckpointedForward::Copy& copy : one.copied) {
        released_[copy.storage] = copy.released;
        for (const std::size_t use : copy.own_uses) copy_uses_[use].insert(copy.storage);
        copy_frees_after_[copy.own_uses.back()].push_back(copy.storage);
      }
      HoldPassing(one);
    }
    for (const CheckpointedForward& one : found_) KeepInputs(one);
    for (const auto& [storage, event] : released_) frees_after_[event].push_back(storage);
  }

  Variant Run() {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      if (const auto at = needs_.find(i); at != needs_.end()) {
        for (const CheckpointedForward* one : at->second) Recompute(*one);
      }
      CopyEvent(i);
      if (const auto at = copy_frees_after_.find(i); at != copy_frees_after_.end()) {
        for (const Storage storage : at->second) edit_.Free(copies_.at(storage));
      }
      if (const auto at = frees_after_.find(i); at != frees_after_.end()) {
        for (const Storage storage : at->second) edit_.Free(storage);
      }
    }
    return edit_.Take();
  }

 private:
  using Names = std::map<Storage, Storage>;

  /// What is kept for the repetition goes with it; what that does not come to, with the checkpoint.
  void HoldPassing(const CheckpointedForward& one) {
    if (one.kept.empty()) return;
    for (const std::size_t i : one.calls) {
      CallRecord& call = edit_.variant().calls[old_.events[i].index];
      call.watched = true;
      for (const NewStorage& fresh : call.fresh) {
        if (!one.kept_passing.contains(fresh.storage)) continue;
        if (i <= one.stop) {
          passing_until_[fresh.storage] = one.first_need;
        } else {
          released_[fresh.storage] = one.last_need;
        }
      }
    }
  }

  /// The checkpoint holds what goes in until its backward is done.
  void KeepInputs(const CheckpointedForward& one) {
    for (const CheckpointedForward::Input& input : one.inputs) {
      if (const auto held = passing_until_.find(input.storage); held != passing_until_.end()) {
        if (held->second > one.last_need) continue;
        passing_until_.erase(held);
      }
      const auto moved = released_.find(input.storage);
      const std::size_t released = moved == released_.end() ? input.freed : moved->second;
      if (released < one.last_need) released_[input.storage] = one.last_need;
    }
  }

  void Recompute(const CheckpointedForward& one) {
    const std::set<std::size_t> own(one.calls.begin(), one.calls.end());
    Names names;
    std::set<Storage> passing;
    for (std::size_t i = one.calls.front(); i <= one.stop; ++i) {
      const JobEvent& event = old_.events[i];
      if (one.kept.contains(i)) {
        TakeKept(old_.calls[event.index], passing);
      } else if (own.contains(i)) {
        CallRecord call = old_.calls[event.index];
        for (const NewStorage& fresh : call.fresh) {
          names[fresh.storage] = edit_.NewStorageNumber();
          if (!one.Needs(fresh.storage)) passing.insert(fresh.storage);
        }
        call.recomputed = true;
        call.watched = !one.kept.empty();
        Rename(call, names);
        edit_.Call(std::move(call));
      } else if (event.kind == JobEvent::Kind::kFree && passing.erase(event.index) > 0) {
        edit_.Free(NameOf(names, event.index));
      }
    }
    for (const Storage storage : passing) edit_.Free(NameOf(names, storage));
    for (const auto& [storage, last] : one.dropped) renamed_[storage] = names.at(storage);
    for (const auto& copy : one.copied) copies_[copy.storage] = names.at(copy.storage);
  }

  /// What a call made is there: only the host has to do with it.
  void TakeKept(const CallRecord& made, std::set<Storage>& passing) {
    edit_.Call({.op = kept_op_,
                .where = made.where,
                .module = made.module,
                .thread = made.thread,
                .recomputed = true,
                .watched = true});
    for (const NewStorage& fresh : made.fresh) {
      if (passing_until_.contains(fresh.storage)) passing.insert(fresh.storage);
    }
  }

  static Storage NameOf(const Names& names, Storage storage) {
    const auto found = names.find(storage);
    return found == names.end() ? storage : found->second;
  }

  static void Rename(CallRecord& call, const Names& names) {
    const auto rename = [&](Storage& storage) {
      if (const auto found = names.find(storage); found != names.end()) storage = found->second;
    };
    ForEachArgument(call, [&](TensorUse& tensor) { rename(tensor.storage); });
    for (TensorUse& tensor : call.results) rename(tensor.storage);
    for (NewStorage& fresh : call.fresh) rename(fresh.storage);
  }

  void CopyEvent(std::size_t i) {
    const JobEvent& event = old_.events[i];
    if (event.kind == JobEvent::Kind::kFree) {
      if (released_.contains(event.index) || passing_until_.contains(event.index)) return;
      if (const auto found = renamed_.find(event.index); found != renamed_.end()) {
        edit_.Free(found->second);
        renamed_.erase(found);
        return;
      }
    }
    if (event.kind != JobEvent::Kind::kCall) return edit_.Copy(event);
    const Names names = NamesAt(i);
    if (names.empty()) return edit_.Copy(event);
    CallRecord call = old_.calls[event.index];
    Rename(call, names);
    edit_.Call(std::move(call));
  }

  /// What stands for the storages that a call reads.
  Names NamesAt(std::size_t i) const {
    Names names;
    const auto copied = copy_uses_.find(i);
    if (renamed_.empty() && copied == copy_uses_.end()) return names;
    const CallRecord& call = old_.calls[old_.events[i].index];
    ForEachArgument(call, [&](const TensorUse& tensor) {
      if (const auto found = renamed_.find(tensor.storage); found != renamed_.end()) {
        names.insert(*found);
      } else if (copied != copy_uses_.end() && copied->second.contains(tensor.storage)) {
        names[tensor.storage] = copies_.at(tensor.storage);
      }
    });
    return names;
  }

  const Variant& old_;
  std::vector<CheckpointedForward> found_;
  JobEditor edit_;
  StringId kept_op_;
  std::map<std::size_t, std::vector<const CheckpointedForward*>> needs_;
  std::map<std::size_t, std::vector<Storage>> frees_after_, copy_frees_after_;
  std::map<std::size_t, std::set<Storage>> copy_uses_;
  /// What is freed at another time than it was, and after which event.
  std::map<Storage, std::size_t> released_;
  /// What was kept and goes in the repetition before this event.
  std::map<Storage, std::size_t> passing_until_;
  /// What was dropped, and what stands for it since it was computed again; the same for copies.
  Names renamed_, copies_;
};

}  // namespace

std::vector<CheckpointedForward> FindCheckpointed(const Job& job, const Variant& variant,
                                                  const CheckpointSegments& segments) {
  return SegmentFinder(job, variant, segments).Run();
}

Variant AddCheckpointing(Job& job, const Variant& variant, const CheckpointSegments& segments) {
  std::vector<CheckpointedForward> found = FindCheckpointed(job, variant, segments);
  return Checkpointer(job, variant, std::move(found)).Run();
}

}  // namespace plimsoll
