#include "step/transforms/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "base/suggest.h"
#include "step/transforms/shard_groups.h"
#include "step/transforms/step_editor.h"
#include "step/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr std::size_t kNever = static_cast<std::size_t>(-1);

/// When each storage is made, used and freed: indices of events.
struct Lives {
  explicit Lives(const Variant& variant) : freed(variant.storages, kNever), uses(variant.storages) {
    for (std::size_t i = 0; i < variant.events.size(); ++i) {
      const StepEvent& event = variant.events[i];
      if (event.kind == StepEvent::Kind::kFree) freed[event.index] = i;
      if (event.kind != StepEvent::Kind::kCall) continue;
      const CallRecord& call = variant.calls[event.index];
      ForEachArgument(call, [&](const TensorUse& tensor) { uses[tensor.storage].push_back(i); });
    }
  }
  std::vector<std::size_t> freed;
  std::vector<std::vector<std::size_t>> uses;
};

/// One forward of a segment, and the backward that belongs to it.
struct Occurrence {
  /// Of its calls.
  std::vector<std::size_t> calls;
  /// Where the backward phase begins.
  std::size_t backward = kNever;
  /// Saved for the backward alone.
  std::set<Storage> dropped;
  /// What it reads that would be gone by the time it is computed again.
  std::vector<Storage> kept_inputs;
  /// The first and the last event of the backward that has to do with what was dropped.
  std::size_t first_need = kNever;
  std::size_t last_need = 0;
};

/// Finds what checkpointing changes in each forward of a segment.
class Finder {
 public:
  Finder(const Step& step, const Variant& variant, const CheckpointSegments& segments)
      : step_(step), variant_(variant), lives_(variant) {
    for (std::size_t i = 0; i < segments.size(); ++i) {
      for (const std::string& block : segments[i]) segment_of_[block] = i;
    }
  }

  std::vector<Occurrence> Run() {
    std::vector<Occurrence> found = Forwards();
    for (Occurrence& one : found) Study(one);
    std::erase_if(found, [](const Occurrence& one) { return one.first_need == kNever; });
    return found;
  }

 private:
  std::vector<Occurrence> Forwards() const {
    std::vector<Occurrence> done;
    std::map<std::size_t, Occurrence> open;
    Phase phase = Phase::kOther;
    for (std::size_t i = 0; i < variant_.events.size(); ++i) {
      const StepEvent& event = variant_.events[i];
      if (event.kind == StepEvent::Kind::kPhase) {
        phase = event.phase;
        if (phase == Phase::kBackward) {
          for (auto& [segment, one] : open) {
            one.backward = i;
            done.push_back(std::move(one));
          }
        }
        open.clear();
      }
      if (event.kind != StepEvent::Kind::kCall || phase != Phase::kForward) continue;
      const std::string_view module = step_.strings[variant_.calls[event.index].module];
      const auto segment = segment_of_.find(BlockOf(module));
      if (segment != segment_of_.end()) open[segment->second].calls.push_back(i);
    }
    return done;
  }

  void Study(Occurrence& one) const {
    const std::set<std::size_t> own(one.calls.begin(), one.calls.end());
    for (const std::size_t i : one.calls) {
      for (const NewStorage& fresh : variant_.calls[variant_.events[i].index].fresh) {
        if (SavedOnly(fresh.storage, own, one)) one.dropped.insert(fresh.storage);
      }
    }
    for (const Storage storage : one.dropped) {
      for (const std::size_t use : lives_.uses[storage]) {
        if (use > one.backward) Need(one, use);
      }
      if (lives_.freed[storage] != kNever) Need(one, lives_.freed[storage]);
    }
    if (one.first_need != kNever) KeepInputs(one);
  }

  static void Need(Occurrence& one, std::size_t event) {
    one.first_need = std::min(one.first_need, event);
    one.last_need = std::max(one.last_need, event);
  }

  /// It outlives the forward, and nothing outside the segment uses it before the backward.
  bool SavedOnly(Storage storage, const std::set<std::size_t>& own, const Occurrence& one) const {
    if (lives_.freed[storage] == kNever || lives_.freed[storage] < one.backward) return false;
    return std::all_of(lives_.uses[storage].begin(), lives_.uses[storage].end(),
                       [&](std::size_t use) { return use > one.backward || own.contains(use); });
  }

  void KeepInputs(Occurrence& one) const {
    std::set<Storage> made;
    for (const std::size_t i : one.calls) {
      const CallRecord& call = variant_.calls[variant_.events[i].index];
      ForEachArgument(call, [&](const TensorUse& tensor) {
        const Storage storage = tensor.storage;
        if (storage == kElsewhere || made.contains(storage)) return;
        const std::size_t freed = lives_.freed[storage];
        if (freed > one.calls.back() && freed < one.first_need) one.kept_inputs.push_back(storage);
        made.insert(storage);
      });
      for (const NewStorage& fresh : call.fresh) made.insert(fresh.storage);
    }
  }

  const Step& step_;
  const Variant& variant_;
  Lives lives_;
  std::map<std::string, std::size_t, std::less<>> segment_of_;
};

/// Writes the variant anew.
class Checkpointer {
 public:
  Checkpointer(Step& step, const Variant& old, std::vector<Occurrence> found)
      : old_(old), found_(std::move(found)), edit_(step, old, "plimsoll.checkpoint") {
    for (Occurrence& one : found_) {
      for (const Storage storage : one.dropped) drops_[DroppedAt(storage, one)].push_back(storage);
      needs_[one.first_need].push_back(&one);
      last_needs_[one.last_need].push_back(&one);
      for (const Storage storage : one.kept_inputs) kept_.insert(storage);
    }
  }

  Variant Run() {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      if (const auto at = needs_.find(i); at != needs_.end()) {
        for (const Occurrence* one : at->second) Recompute(*one);
      }
      CopyEvent(old_.events[i]);
      if (const auto at = drops_.find(i); at != drops_.end()) {
        for (const Storage storage : at->second) edit_.Free(storage);
      }
      if (const auto at = last_needs_.find(i); at != last_needs_.end()) {
        for (const Occurrence* one : at->second) {
          for (const Storage storage : one->kept_inputs) edit_.Free(storage);
        }
      }
    }
    return edit_.Take();
  }

 private:
  /// After which event nothing holds it any more: the last call of the forward that reads it, or
  /// the one that makes it. Autocast keeps the weights that it casts until it ends.
  std::size_t DroppedAt(Storage storage, const Occurrence& one) const {
    std::size_t last = one.calls.front();
    for (const std::size_t i : one.calls) {
      const CallRecord& call = old_.calls[old_.events[i].index];
      bool reads = false;
      bool of_parameter = false;
      ForEachArgument(call, [&](const TensorUse& t) {
        reads |= t.storage == storage;
        of_parameter |= t.parameter;
      });
      const bool makes = std::any_of(call.fresh.begin(), call.fresh.end(),
                                     [&](const auto& fresh) { return fresh.storage == storage; });
      if (makes && of_parameter && call.args.size() == 1) return one.backward - 1;
      if (reads || makes) last = i;
    }
    return last;
  }

  /// The segment's forward again, up to the last call that makes something that is needed.
  void Recompute(const Occurrence& one) {
    std::size_t stop = one.calls.front();
    for (const std::size_t i : one.calls) {
      for (const NewStorage& fresh : old_.calls[old_.events[i].index].fresh) {
        if (one.dropped.contains(fresh.storage)) stop = i;
      }
    }
    const std::set<std::size_t> own(one.calls.begin(), one.calls.end());
    std::set<Storage> passing;
    for (std::size_t i = one.calls.front(); i <= stop; ++i) {
      const StepEvent& event = old_.events[i];
      if (own.contains(i)) {
        CallRecord call = old_.calls[event.index];
        for (const NewStorage& fresh : call.fresh) {
          renamed_[fresh.storage] = edit_.NewStorageNumber();
          if (!one.dropped.contains(fresh.storage)) passing.insert(fresh.storage);
        }
        edit_.Call(Renamed(std::move(call)));
      } else if (event.kind == StepEvent::Kind::kFree && passing.erase(event.index) > 0) {
        edit_.Free(renamed_.at(event.index));
        renamed_.erase(event.index);
      }
    }
    for (const Storage storage : passing) {
      edit_.Free(renamed_.at(storage));
      renamed_.erase(storage);
    }
  }

  CallRecord Renamed(CallRecord call) const {
    const auto rename = [&](Storage& storage) {
      if (const auto found = renamed_.find(storage); found != renamed_.end()) {
        storage = found->second;
      }
    };
    ForEachArgument(call, [&](TensorUse& tensor) { rename(tensor.storage); });
    for (TensorUse& tensor : call.results) rename(tensor.storage);
    for (NewStorage& fresh : call.fresh) rename(fresh.storage);
    return call;
  }

  void CopyEvent(const StepEvent& event) {
    if (event.kind == StepEvent::Kind::kFree) {
      if (kept_.erase(event.index) > 0) return;  // freed when the segment is done with it
      if (const auto found = renamed_.find(event.index); found != renamed_.end()) {
        edit_.Free(found->second);
        renamed_.erase(found);
        return;
      }
    }
    if (event.kind == StepEvent::Kind::kCall && !renamed_.empty()) {
      const CallRecord& call = old_.calls[event.index];
      bool touched = false;
      ForEachArgument(call, [&](const TensorUse& t) { touched |= renamed_.contains(t.storage); });
      if (touched) return edit_.Call(Renamed(call));
    }
    edit_.Copy(event);
  }

  const Variant& old_;
  std::vector<Occurrence> found_;
  StepEditor edit_;
  std::map<std::size_t, std::vector<Storage>> drops_;
  std::map<std::size_t, std::vector<const Occurrence*>> needs_, last_needs_;
  std::set<Storage> kept_;
  /// What was dropped, and what stands for it since it was computed again.
  std::map<Storage, Storage> renamed_;
};

}  // namespace

std::vector<std::string> CheckpointBlocks(const Step& step, const Variant& variant) {
  std::vector<std::string> blocks;
  std::set<std::string_view> seen;
  Phase phase = Phase::kOther;
  for (const StepEvent& event : variant.events) {
    if (event.kind == StepEvent::Kind::kPhase) phase = event.phase;
    if (event.kind != StepEvent::Kind::kCall || phase != Phase::kForward) continue;
    const std::string_view block = BlockOf(step.strings[variant.calls[event.index].module]);
    if (!block.empty() && seen.insert(block).second) blocks.emplace_back(block);
  }
  return blocks;
}

Result<CheckpointSegments> ParseCheckpointing(std::string_view text,
                                              const std::vector<std::string>& blocks) {
  CheckpointSegments segments;
  if (blocks.empty()) {
    return Error{.message = "no blocks to checkpoint: the model has no numbered list of modules",
                 .hint = "put its repeated layers into an nn.ModuleList or nn.Sequential"};
  }
  if (text == "all" || text == "sqrt" || text.starts_with("every:")) {
    std::size_t every = 1;
    if (text.starts_with("every:")) {
      const std::string_view digits = text.substr(6);
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), every);
      if (read.ec != std::errc() || read.ptr != digits.data() + digits.size() || every < 1) {
        return Error{.message = fmt::format("'{}' names no number of blocks", text),
                     .hint = "such as every:2"};
      }
    }
    const auto length =
        text == "sqrt"
            ? static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(blocks.size()))))
            : 1;
    for (std::size_t i = 0; i < blocks.size(); i += std::max(length, every)) {
      const std::size_t end = std::min(blocks.size(), i + length);
      segments.emplace_back(blocks.begin() + std::ptrdiff_t(i),
                            blocks.begin() + std::ptrdiff_t(end));
    }
    return segments;
  }
  const std::vector<std::string_view> known(blocks.begin(), blocks.end());
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view name = text.substr(0, comma);
    if (std::find(blocks.begin(), blocks.end(), name) == blocks.end()) {
      return Error{.message = fmt::format("'{}' is no block of this model", name),
                   .hint = SuggestOr(name, known,
                                     fmt::format("all, every:2, sqrt, or blocks from {} to {}",
                                                 blocks.front(), blocks.back()))};
    }
    segments.push_back({std::string(name)});
    text.remove_prefix(std::min(text.size(), comma + 1));
  }
  return segments;
}

Variant AddCheckpointing(Step& step, const Variant& variant, const CheckpointSegments& segments) {
  Finder finder(step, variant, segments);
  std::vector<Occurrence> found = finder.Run();
  return Checkpointer(step, variant, std::move(found)).Run();
}

}  // namespace plimsoll
