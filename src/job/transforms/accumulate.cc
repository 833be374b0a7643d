#include "job/transforms/accumulate.h"

#include <map>
#include <set>

#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// Where a storage is made: the how-manieth call of its pass, which of its new storages.
using Birth = std::pair<std::size_t, std::size_t>;

struct PassSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// From the inputs of each step to the end of its backward.
std::vector<PassSpan> PassesIn(const Variant& variant) {
  std::vector<PassSpan> passes;
  std::size_t begin = 0;
  bool open = false;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    const JobEvent& event = variant.events[i];
    const bool begins = event.kind == JobEvent::Kind::kStage &&
                        (event.stage == Stage::kTransfer || event.stage == Stage::kForward);
    const bool ends = event.kind == JobEvent::Kind::kStage && event.stage == Stage::kOptimizer;
    // A forward after the optimizer's step is none of its passes.
    if (event.kind == JobEvent::Kind::kStep) open = false;
    if (begins && !open) {
      begin = i;
      open = true;
    }
    if (ends && open) {
      passes.push_back({begin, i});
      open = false;
    }
  }
  return passes;
}

/// Repeats the pass of each step.
class PassRepeater {
 public:
  PassRepeater(Job& job, const Variant& old, const std::vector<PassSpan>& passes, int times)
      : old_(old), passes_(passes), times_(times), edit_(job, old, "plimsoll.accumulate") {
    // The second pass lets go of what the first left; the first has nothing before it.
    template_ = passes_.size() > 1 ? passes_[1] : passes_[0];
    for (const PassSpan& pass : passes_) NoteBirths(pass);
    NoteGradients();
  }

  Variant Run() {
    std::size_t pass = 0;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      if (pass < passes_.size() && i == passes_[pass].end) {
        BeginPass(passes_[pass]);
        for (int repeat = 1; repeat < times_; ++repeat) Repeat();
        ++pass;
      }
      CopyRenamed(old_.events[i]);
    }
    return edit_.Take();
  }

 private:
  void NoteBirths(const PassSpan& pass) {
    std::size_t call = 0;
    for (std::size_t i = pass.begin; i < pass.end; ++i) {
      if (old_.events[i].kind != JobEvent::Kind::kCall) continue;
      const std::vector<NewStorage>& fresh = old_.calls[old_.events[i].index].fresh;
      for (std::size_t f = 0; f < fresh.size(); ++f) births_[fresh[f].storage] = {call, f};
      ++call;
    }
  }

  /// Gradients stay where the first pass of a step made them; later ones are added to those.
  void NoteGradients() {
    for (const JobEvent& event : old_.events) {
      if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
        gradients_.insert(event.index);
      }
    }
    // Under FSDP a whole gradient is gone when its shards are summed up; those stay. One of the
    // step before is let go in a pass where zero_grad() comes after the forward.
    for (const PassSpan& pass : passes_) {
      std::set<Storage> made;
      for (std::size_t i = pass.begin; i < pass.end; ++i) {
        const JobEvent& event = old_.events[i];
        if (event.kind == JobEvent::Kind::kCall) {
          for (const NewStorage& fresh : old_.calls[event.index].fresh) made.insert(fresh.storage);
        }
        if (event.kind == JobEvent::Kind::kFree && made.contains(event.index)) {
          gradients_.erase(event.index);
        }
      }
    }
    for (std::size_t i = template_.begin; i < template_.end; ++i) {
      if (old_.events[i].kind != JobEvent::Kind::kCall) continue;
      const CallRecord& call = old_.calls[old_.events[i].index];
      for (const NewStorage& fresh : call.fresh) last_touch_[fresh.storage] = i;
      ForEachArgument(call, [&](const TensorUse& tensor) { last_touch_[tensor.storage] = i; });
    }
    for (const Storage storage : gradients_) {
      if (const auto at = last_touch_.find(storage); at != last_touch_.end()) {
        added_at_[at->second].push_back(storage);
      }
    }
  }

  /// What the captured pass of a step made, by where it was made.
  void BeginPass(const PassSpan& pass) {
    latest_.clear();
    gradient_of_.clear();
    for (std::size_t i = pass.begin; i < pass.end; ++i) {
      if (old_.events[i].kind != JobEvent::Kind::kCall) continue;
      for (const NewStorage& fresh : old_.calls[old_.events[i].index].fresh) {
        const Birth birth = births_.at(fresh.storage);
        latest_[birth] = fresh.storage;
        if (gradients_.contains(fresh.storage)) gradient_of_[birth] = fresh.storage;
        renamed_.erase(fresh.storage);
      }
    }
    current_ = pass;
  }

  void Repeat() {
    std::map<Storage, Storage> own;  // of this pass, by their numbers in the template
    for (std::size_t i = template_.begin; i < template_.end; ++i) {
      const JobEvent& event = old_.events[i];
      switch (event.kind) {
        case JobEvent::Kind::kCall:
          RepeatCall(old_.calls[event.index], own);
          break;
        case JobEvent::Kind::kFree:
          RepeatFree(event.index, own);
          break;
        case JobEvent::Kind::kLabel:
          if (event.category != Category::kGradients && own.contains(event.index)) {
            edit_.Label(own.at(event.index), event.category);
          }
          break;
        default:
          edit_.Copy(event);
      }
      if (const auto at = added_at_.find(i); at != added_at_.end()) {
        for (const Storage gradient : at->second) AddGradient(gradient, own);
      }
    }
    // What is left over is let go where the pass's own would have been.
    for (const auto& [storage, number] : own) {
      const Birth birth = births_.at(storage);
      if (!gradients_.contains(storage)) latest_[birth] = number;
    }
    for (std::size_t i = current_.begin; i < current_.end; ++i) {
      if (old_.events[i].kind != JobEvent::Kind::kCall) continue;
      for (const NewStorage& fresh : old_.calls[old_.events[i].index].fresh) {
        if (!gradients_.contains(fresh.storage)) {
          renamed_[fresh.storage] = latest_.at(births_.at(fresh.storage));
        }
      }
    }
  }

  void RepeatCall(CallRecord call, std::map<Storage, Storage>& own) {
    for (NewStorage& fresh : call.fresh) {
      own[fresh.storage] = edit_.NewStorageNumber();
      fresh.storage = own.at(fresh.storage);
    }
    const auto rename = [&](TensorUse& tensor) {
      if (const auto found = own.find(tensor.storage); found != own.end()) {
        tensor.storage = found->second;
      }
    };
    ForEachArgument(call, rename);
    for (TensorUse& tensor : call.results) rename(tensor);
    edit_.Call(std::move(call));
  }

  /// Of this pass, or what the one before it left.
  void RepeatFree(Storage storage, std::map<Storage, Storage>& own) {
    if (const auto found = own.find(storage); found != own.end()) {
      edit_.Free(found->second);
      own.erase(found);
      return;
    }
    const auto birth = births_.find(storage);
    if (birth == births_.end() || gradients_.contains(storage)) return;
    const auto left = latest_.find(birth->second);
    if (left == latest_.end() || freed_.contains(left->second)) return;
    edit_.Free(left->second);
    freed_.insert(left->second);
  }

  void AddGradient(Storage gradient, std::map<Storage, Storage>& own) {
    const auto made = own.find(gradient);
    const auto kept = gradient_of_.find(births_.at(gradient));
    if (made == own.end() || kept == gradient_of_.end()) return;
    edit_.AddInto(kept->second, made->second);
    edit_.Free(made->second);
    own.erase(made);
  }

  void CopyRenamed(const JobEvent& event) {
    if (event.kind == JobEvent::Kind::kFree) {
      const auto found = renamed_.find(event.index);
      const Storage storage = found == renamed_.end() ? event.index : found->second;
      if (freed_.insert(storage).second) edit_.Free(storage);
      return;
    }
    // What runs after the passes (a measure of how good it is now) reads what the last one left.
    if (event.kind == JobEvent::Kind::kCall && ReadsRenamed(old_.calls[event.index])) {
      CallRecord call = old_.calls[event.index];
      const auto rename = [&](TensorUse& tensor) {
        if (const auto found = renamed_.find(tensor.storage); found != renamed_.end()) {
          tensor.storage = found->second;
        }
      };
      ForEachArgument(call, rename);
      for (TensorUse& tensor : call.results) rename(tensor);
      return edit_.Call(std::move(call));
    }
    edit_.Copy(event);
  }

  bool ReadsRenamed(const CallRecord& call) const {
    bool reads = false;
    ForEachArgument(call, [&](const TensorUse& t) { reads |= renamed_.contains(t.storage); });
    return reads;
  }

  const Variant& old_;
  const std::vector<PassSpan>& passes_;
  const int times_;
  JobEditor edit_;
  PassSpan template_;
  PassSpan current_;
  std::map<Storage, Birth> births_;
  std::set<Storage> gradients_;
  /// Of the template: the last call that makes or reads a storage; the gradients that are done
  /// then.
  std::map<Storage, std::size_t> last_touch_;
  std::map<std::size_t, std::vector<Storage>> added_at_;
  /// What each birth last gave, in the step at hand; where the gradients of this step are.
  std::map<Birth, Storage> latest_, gradient_of_;
  std::map<Storage, Storage> renamed_;
  std::set<Storage> freed_;
};

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
  if (passes == 1) return std::nullopt;
  return Error{.message = passes == 0 ? "the captured step has no backward to repeat"
                                      : "the captured step accumulates gradients already",
               .file = job.file,
               .hint = passes == 0 ? "capture a training step" : "capture it with accumulate=1"};
}

Variant AddAccumulation(Job& job, const Variant& variant, int passes) {
  const std::vector<PassSpan> found = PassesIn(variant);
  if (passes < 2 || found.empty() || PassesOf(variant) != 1) return variant;
  Variant made = PassRepeater(job, variant, found, passes).Run();
  made.passes = passes;
  // The loader still gives the whole batch.
  for (Part& part : made.later) part.passes *= passes;
  return made;
}

}  // namespace plimsoll
