#include "job/transforms/block_offload.h"

#include <algorithm>
#include <map>
#include <set>

#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr std::string_view kLeave = "plimsoll.leave_";
constexpr std::string_view kBring = "plimsoll.bring_";
constexpr std::string_view kAwait = "plimsoll.await_copy_";
/// What is smaller than this part of the largest is not worth a copy.
constexpr Bytes kSmallPart = 64;

/// Bytes of what each call makes, by storage.
std::map<Storage, Number> SizesIn(const Variant& variant, const CheckpointedForward& one) {
  std::map<Storage, Number> sizes;
  for (const std::size_t i : one.calls) {
    for (const NewStorage& fresh : variant.calls[variant.events[i].index].fresh) {
      sizes[fresh.storage] = fresh.bytes;
    }
  }
  return sizes;
}

constexpr std::size_t kNotSeen = static_cast<std::size_t>(-1);

/// When a module's forward is done and its backward begins, in one pass.
struct ModuleSpan {
  std::size_t done = kNotSeen;
  std::size_t backward = kNotSeen;
};

/// Of some modules in the pass that has its backward after this event.
std::map<std::string, ModuleSpan> SpansOf(const Job& job, const Variant& variant,
                                          const CheckpointSegments& segments,
                                          std::size_t backward) {
  std::map<std::string, ModuleSpan> spans;
  for (const CheckpointSegment& segment : segments) spans[segment.waits_for];
  std::size_t begin = backward;
  while (begin > 0 && variant.events[begin - 1].kind != JobEvent::Kind::kStep) --begin;
  for (std::size_t i = begin; i < variant.events.size(); ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind == JobEvent::Kind::kStage && i > backward) break;
    if (event.kind != JobEvent::Kind::kCall) continue;
    const std::string_view module = job.strings[variant.calls[event.index].module];
    ForEachModuleAround(module, [&](std::string_view around) {
      const auto found = spans.find(std::string(around));
      if (found == spans.end()) return;
      ModuleSpan& span = found->second;
      if (i < backward) {
        span.done = i;
      } else if (span.backward == kNotSeen) {
        span.backward = i;
      }
    });
  }
  return spans;
}

class BlockOffloader {
 public:
  BlockOffloader(Job& job, const Variant& old, const CheckpointSegments& segments)
      : job_(job), old_(old), edit_(job, old, "plimsoll.offload") {
    std::map<std::size_t, std::map<std::string, ModuleSpan>> spans;
    for (const CheckpointedForward& one : FindCheckpointed(job, old, segments)) {
      const auto [found, added] = spans.try_emplace(one.backward);
      if (added) found->second = SpansOf(job, old, segments, one.backward);
      Plan(one, found->second.at(segments[one.segment].waits_for));
    }
  }

  Variant Run() {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      for (const std::size_t group : At(brings_, i)) Bring(groups_[group]);
      for (const std::size_t group : At(needs_, i)) Await(groups_[group].back.front());
      CopyEvent(i);
      for (const std::size_t group : At(leaves_, i)) Leave(groups_[group]);
      for (const std::size_t group : At(frees_, i)) Free(groups_[group]);
    }
    return edit_.Take();
  }

 private:
  struct Group {
    std::vector<Storage> storages;
    std::vector<Number> sizes;
    /// What stands for them in the backward.
    std::vector<Storage> back;
  };
  using Moments = std::map<std::size_t, std::vector<std::size_t>>;

  static std::vector<std::size_t> At(const Moments& moments, std::size_t event) {
    const auto found = moments.find(event);
    return found == moments.end() ? std::vector<std::size_t>() : found->second;
  }

  void Plan(const CheckpointedForward& one, const ModuleSpan& until) {
    Group group{.storages = LeavingOf(old_, one)};
    const bool comes_after =
        until.done != kNotSeen && until.done > one.calls.back() && until.backward < one.first_need;
    if (group.storages.empty() || !comes_after) return;
    const std::map<Storage, Number> sizes = SizesIn(old_, one);
    for (const Storage storage : group.storages) group.sizes.push_back(sizes.at(storage));
    const std::size_t index = groups_.size();
    leaves_[one.calls.back()].push_back(index);
    frees_[until.done].push_back(index);
    brings_[until.backward].push_back(index);
    needs_[one.first_need].push_back(index);
    groups_.push_back(std::move(group));
  }

  CallRecord Copy(std::string_view op, const Group& group) {
    CallRecord call{.op = job_.strings.Intern(op)};
    Argument::List tensors;
    for (const Storage storage : group.storages) tensors.push_back({TensorUse{.storage = storage}});
    Argument::List sizes;
    for (const Number& size : group.sizes) sizes.push_back({size});
    call.args = {{std::move(tensors)}, {std::move(sizes)}};
    return call;
  }

  void Leave(const Group& group) { edit_.Call(Copy(kLeave, group)); }

  void Free(const Group& group) {
    Await(group.storages.front());
    for (const Storage storage : group.storages) edit_.Free(storage);
    gone_.insert(group.storages.begin(), group.storages.end());
  }

  void Bring(Group& group) {
    CallRecord call = Copy(kBring, group);
    std::get<Argument::List>(call.args.front().is).clear();
    for (std::size_t i = 0; i < group.storages.size(); ++i) {
      const Storage back = edit_.NewStorageNumber();
      group.back.push_back(back);
      back_[group.storages[i]] = back;
      call.fresh.push_back({.storage = back, .bytes = group.sizes[i]});
    }
    edit_.Call(std::move(call));
  }

  void Await(Storage storage) {
    CallRecord call{.op = job_.strings.Intern(kAwait)};
    call.args = {{TensorUse{.storage = storage}}};
    edit_.Call(std::move(call));
  }

  void CopyEvent(std::size_t i) {
    const JobEvent& event = old_.events[i];
    if (event.kind == JobEvent::Kind::kFree && gone_.contains(event.index)) {
      if (const auto back = back_.find(event.index); back != back_.end()) edit_.Free(back->second);
      return;
    }
    if (event.kind != JobEvent::Kind::kCall || back_.empty()) return edit_.Copy(event);
    bool changed = false;
    CallRecord call = old_.calls[event.index];
    const auto rename = [&](TensorUse& tensor) {
      const auto back = back_.find(tensor.storage);
      if (back == back_.end()) return;
      tensor.storage = back->second;
      changed = true;
    };
    ForEachArgument(call, rename);
    for (TensorUse& result : call.results) rename(result);
    if (!changed) return edit_.Copy(event);
    edit_.Call(std::move(call));
  }

  Job& job_;
  const Variant& old_;
  JobEditor edit_;
  std::vector<Group> groups_;
  /// After which event they leave and are freed; before which they are brought and needed.
  Moments leaves_, frees_, brings_, needs_;
  std::set<Storage> gone_;
  std::map<Storage, Storage> back_;
};

}  // namespace

std::vector<Storage> LeavingOf(const Variant& variant, const CheckpointedForward& one) {
  const std::map<Storage, Number> sizes = SizesIn(variant, one);
  Bytes largest = 0;
  for (const auto& [storage, last] : one.dropped) {
    largest = std::max(largest, sizes.at(storage).at(1));
  }
  std::vector<Storage> leaving;
  for (const auto& [storage, last] : one.dropped) {
    // Autocast holds the weights that it casts: nothing is gained by a copy.
    const bool held = last + 1 == one.backward;
    if (!held && sizes.at(storage).at(1) * kSmallPart >= largest) leaving.push_back(storage);
  }
  return leaving;
}

Variant OffloadBlocks(Job& job, const Variant& variant, const CheckpointSegments& segments) {
  return BlockOffloader(job, variant, segments).Run();
}

std::optional<SideCopy> SideCopyOf(const Job& job, const CallRecord& call) {
  const std::string_view op = job.strings[call.op];
  if ((op != kLeave && op != kBring) || call.args.size() != 2) return std::nullopt;
  SideCopy copy{.leaves = op == kLeave};
  if (const auto* sizes = std::get_if<Argument::List>(&call.args[1].is)) {
    for (const Argument& size : *sizes) {
      if (const auto* bytes = std::get_if<Number>(&size.is)) copy.bytes.push_back(*bytes);
    }
  }
  ForEachArgument(call, [&](const TensorUse& tensor) { copy.storages.push_back(tensor.storage); });
  for (const NewStorage& fresh : call.fresh) copy.storages.push_back(fresh.storage);
  return copy;
}

std::optional<Storage> CopyWaitedFor(const Job& job, const CallRecord& call) {
  if (job.strings[call.op] != kAwait || call.args.empty()) return std::nullopt;
  const auto* tensor = std::get_if<TensorUse>(&call.args.front().is);
  return tensor == nullptr ? std::nullopt : std::optional<Storage>(tensor->storage);
}

}  // namespace plimsoll
