#include "job/time/recomputation.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll {
namespace {

/// So many calls in the order of the forward are no chance, if they are not all the same.
constexpr std::size_t kLeastRun = 4;

class RecomputationFinder {
 public:
  RecomputationFinder(const Job& job, const Variant& variant)
      : job_(job), variant_(variant), found_(variant.calls.size()) {}

  std::vector<bool> Run() {
    const TimedStep last = LastStepOf(variant_);
    Stage stage = last.stage;
    for (const JobEvent& event : last.events) {
      if (event.kind == JobEvent::Kind::kStage) {
        if (stage == Stage::kBackward) Compare();
        stage = event.stage;
        if (stage == Stage::kForward) forward_.clear();
        if (stage == Stage::kBackward) backward_.clear();
      }
      if (event.kind != JobEvent::Kind::kCall) continue;
      if (variant_.calls[event.index].recomputed) found_[event.index] = true;
      if (IsAdded(event.index)) continue;
      if (stage == Stage::kForward) forward_.push_back(event.index);
      if (stage == Stage::kBackward) backward_.push_back(event.index);
    }
    if (stage == Stage::kBackward) Compare();
    return std::move(found_);
  }

 private:
  using Key = std::tuple<StringId, StringId, StringId>;
  Key KeyOf(std::uint32_t call) const {
    const CallRecord& record = variant_.calls[call];
    return {record.op, record.where, record.module};
  }

  /// By FSDP or the like, which gathers the same in forward and backward.
  bool IsAdded(std::uint32_t call) const {
    const std::string_view op = job_.strings[variant_.calls[call].op];
    return op.starts_with("plimsoll.") && !op.starts_with("plimsoll.attention");
  }

  void Compare() {
    std::map<Key, std::vector<std::size_t>> places;
    for (std::size_t i = 0; i < forward_.size(); ++i) places[KeyOf(forward_[i])].push_back(i);
    for (std::size_t i = 0; i < backward_.size();) {
      std::size_t longest = 0;
      if (const auto at = places.find(KeyOf(backward_[i])); at != places.end()) {
        for (const std::size_t place : at->second) longest = std::max(longest, RunFrom(place, i));
      }
      const bool repeated = longest >= kLeastRun && Differ(i, i + longest);
      const std::size_t next = repeated ? i + longest : i + 1;
      for (; i < next; ++i) found_[backward_[i]] = found_[backward_[i]] || repeated;
    }
  }

  bool Differ(std::size_t begin, std::size_t end) const {
    const StringId op = variant_.calls[backward_[begin]].op;
    return std::any_of(backward_.begin() + std::ptrdiff_t(begin),
                       backward_.begin() + std::ptrdiff_t(end),
                       [&](std::uint32_t call) { return variant_.calls[call].op != op; });
  }

  std::size_t RunFrom(std::size_t forward, std::size_t backward) const {
    std::size_t run = 0;
    while (forward + run < forward_.size() && backward + run < backward_.size() &&
           KeyOf(forward_[forward + run]) == KeyOf(backward_[backward + run])) {
      ++run;
    }
    return run;
  }

  const Job& job_;
  const Variant& variant_;
  std::vector<bool> found_;
  std::vector<std::uint32_t> forward_, backward_;
};

}  // namespace

TimedStep LastStepOf(const Variant& variant) {
  const std::span<const JobEvent> events = variant.events;
  TimedStep last{.events = events};
  Stage stage = Stage::kUnknown;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == JobEvent::Kind::kStep) last = {events.subspan(i), stage};
    if (events[i].kind == JobEvent::Kind::kStage) stage = events[i].stage;
  }
  return last.stage == Stage::kBackward ? TimedStep{.events = events} : last;
}

std::vector<bool> FindRecomputed(const Job& job, const Variant& variant) {
  return RecomputationFinder(job, variant).Run();
}

}  // namespace plimsoll
