#include "diagnose/phases/phases.h"

#include <algorithm>
#include <unordered_map>

namespace plimsoll {
namespace {

/// A backward pass makes at least this many allocations; fewer are stray events without frames.
constexpr int kLeastBackward = 3;
/// One allocation in this many must have a frame that counts for threads to be told apart.
constexpr std::size_t kFramedShare = 20;
/// A program that catches the error lets go of at least this share before it goes on.
constexpr double kUnwound = 0.1;

Thread ThreadOfStack(const StackTraits& traits, std::uint32_t main_root) {
  const bool engine = (traits.signs & kSignEngine) != 0;
  // An optimizer that steps inside the backward makes neither gradients nor temporaries of it.
  if (engine && (traits.signs & kSignOptimizer) != 0) return Thread::kOther;
  if (!traits.framed || traits.root_in_torch || engine) return Thread::kBackward;
  return traits.root == main_root ? Thread::kMain : Thread::kOther;
}

/// What came after a request was refused.
struct Aftermath {
  Position at = 0;
  /// Until the next allocation or refusal.
  Bytes released_before_next = 0;
};

/// What follows a refusal decides what it was. Looked at from the last event to the first.
std::vector<Aftermath> Aftermaths(const Phases& p) {
  std::vector<Aftermath> list;
  Bytes released = 0;
  for (Position i = static_cast<Position>(p.timeline.events.size()) - 1; i >= 0; --i) {
    const Event& e = p.timeline.events[static_cast<std::size_t>(i)];
    const AllocationIndex id = p.ledger.allocation_of_event[static_cast<std::size_t>(i)];
    if (e.action == Action::kOutOfMemory) {
      list.push_back({.at = i, .released_before_next = released});
      released = 0;
    } else if (id == Ledger::kNoAllocation) {
      continue;
    } else if (e.action == Action::kAlloc) {
      released = 0;
    } else if (p.at(id).released == i) {
      released += p.at(id).block;
    }
  }
  std::reverse(list.begin(), list.end());
  return list;
}

/// Where the optimizer's work after a backward ends.
Position OptimizerEndAfter(const Phases& p, std::size_t k, Position until) {
  const Position after = p.backwards[k].end;
  Position result = p.marks.LastEnd(after, until);
  for (const Allocation& a : p.Between(after, until)) {
    if ((p.Signs(a) & (kSignOptimizer | kSignScalerStep)) != 0) result = std::max(result, a.made);
  }
  // An optimizer that allocates nothing (SGD after its first step) ends where the gradients go,
  // provided that nothing else allocates before.
  std::vector<Position> frees;
  for (AllocationIndex g : p.backwards[k].gradients) {
    const Position released = p.Released(p.at(g));
    if (released > after && released < until) frees.push_back(released);
  }
  if (!frees.empty() && frees.size() * 2 >= p.backwards[k].gradients.size()) {
    std::sort(frees.begin(), frees.end());
    const Position middle = frees[frees.size() / 2];
    if (p.Between(result, middle).size() <= std::max<std::size_t>(2, frees.size() / 20)) {
      result = std::max(result, frees.back());
    }
  }
  return result;
}

/// Layers that save nothing for the backward (a frozen backbone) come before the first block that
/// is released in it: the forward begins where the same line called the model.
Position WholeForward(const Phases& p, const Backward& b, const Allocation& first_saved) {
  Position start = first_saved.made;
  const std::uint32_t caller = p.stacks.of(first_saved.stack).caller;
  if (caller == 0) return start;
  const std::span<const Allocation> before = p.Between(b.optimizer_end, first_saved.made);
  for (auto a = before.rbegin(); a != before.rend(); ++a) {
    const std::uint32_t other = p.stacks.of(a->stack).caller;
    if (other == 0) continue;
    if (other != caller) break;
    start = a->made;
  }
  return start;
}

}  // namespace

Phases::Phases(const Timeline& t, const Ledger& l, const StackAnalysis& s)
    : timeline(t), ledger(l), stacks(s), is_gradient(l.allocations.size(), false) {
  FindThreads();
  FindOoms();
  marks = FindOptimizerMarks(*this);
  if (framed) {
    FindBackwards();
  } else {
    FindBackwardsWithoutStacks();
  }
  for (const Backward& b : backwards) ends_.push_back(b.end);
  // A step that is given a closure runs forward and backward inside itself: its mark says nothing.
  if (framed) {
    std::erase_if(marks.steps, [&](const std::pair<Position, Position>& mark) {
      const std::size_t k = GapOf(mark.first);
      return k < backwards.size() && backwards[k].start <= mark.second;
    });
  }
  FindGradients();
  FindSteps();
  FindOptimizerEnds();
  FindForwardStarts();
  CountCompleteSteps();
}

bool Phases::FailedInBackward() const {
  if (!framed || !fatal) return false;
  const StackId stack = timeline.events[static_cast<std::size_t>(*fatal)].stack;
  return threads_[stack.valid() ? stack.index() + 1 : 0] == Thread::kBackward;
}

void Phases::CountCompleteSteps() {
  complete_steps = steps;
  if (!fatal || backwards.empty()) return;
  const StackTraits& failed = stacks.of(timeline.events[static_cast<std::size_t>(*fatal)].stack);
  const bool in_optimizer = (failed.signs & kSignOptimizer) != 0;
  const bool in_backward = FailedInBackward() || (!framed && *fatal <= backwards.back().end);
  if (in_optimizer || in_backward) complete_steps = std::max(0, steps - 1);
}

std::span<const Allocation> Phases::Between(Position after, Position before) const {
  const auto& all = ledger.allocations;
  const auto first = std::partition_point(all.begin(), all.end(),
                                          [&](const Allocation& a) { return a.made <= after; });
  const auto last =
      std::partition_point(first, all.end(), [&](const Allocation& a) { return a.made < before; });
  return {first, last};
}

std::size_t Phases::GapOf(Position p) const {
  return static_cast<std::size_t>(std::lower_bound(ends_.begin(), ends_.end(), p) - ends_.begin());
}

std::size_t Phases::Outlived(const Allocation& a) const {
  const std::size_t first = GapOf(a.made);
  const Position released = Released(a);
  const auto alive_until = static_cast<std::size_t>(
      std::lower_bound(ends_.begin(), ends_.end(), released) - ends_.begin());
  return alive_until > first ? alive_until - first : 0;
}

void Phases::FindThreads() {
  std::unordered_map<std::uint32_t, std::size_t> roots;
  std::size_t with_frames = 0;
  for (const Allocation& a : ledger.allocations) {
    if (a.made == kBefore) continue;
    const StackTraits& traits = stacks.of(a.stack);
    if (!traits.framed || traits.root_in_torch) continue;
    ++with_frames;
    ++roots[traits.root];
  }
  framed = with_frames > 0 && with_frames * kFramedShare >= ledger.allocations.size();
  std::uint32_t main_root = 0;
  std::size_t most = 0;
  for (const auto& [root, count] : roots) {
    if (count > most || (count == most && root < main_root)) {
      most = count;
      main_root = root;
    }
  }
  threads_.push_back(Thread::kBackward);
  for (std::size_t s = 0; s < timeline.stacks.stack_count(); ++s) {
    const StackTraits& traits = stacks.of(StackId(s));
    threads_.push_back(ThreadOfStack(traits, main_root));
  }
}

void Phases::FindOoms() {
  end = static_cast<Position>(timeline.events.size());
  fatal = FatalOutOfMemory(timeline, ledger);
  const std::vector<Aftermath> aftermaths = Aftermaths(*this);
  Bytes allocated = ledger.initial_allocated;
  std::size_t next = 0;
  for (Position i = 0; i < end && next < aftermaths.size(); ++i) {
    const AllocationIndex id = ledger.allocation_of_event[static_cast<std::size_t>(i)];
    if (id != Ledger::kNoAllocation && at(id).made == i) allocated += at(id).block;
    if (id != Ledger::kNoAllocation && at(id).released == i) allocated -= at(id).block;
    if (i != aftermaths[next].at) continue;
    const Aftermath& after = aftermaths[next++];
    const auto share = [&](Bytes n) { return double(n) / double(std::max<Bytes>(allocated, 1)); };
    const bool fatal_end = fatal == i;
    ooms.push_back(i);
    oom_ends.push_back(fatal_end                                      ? OomEnd::kFatal
                       : share(after.released_before_next) > kUnwound ? OomEnd::kCaught
                                                                      : OomEnd::kFellBack);
  }
  if (fatal) end = *fatal;
}

std::optional<Position> Phases::UnwoundBy(const Allocation& a) const {
  const auto after = std::upper_bound(ooms.begin(), ooms.end(), Released(a));
  if (after == ooms.begin()) return std::nullopt;
  const Position oom = *(after - 1);
  const bool caught =
      oom_ends[static_cast<std::size_t>(after - 1 - ooms.begin())] == OomEnd::kCaught;
  const bool unwinding = a.made < oom && Between(oom, a.released).empty();
  return caught && unwinding && Released(a) != kNotYet ? std::optional(oom) : std::nullopt;
}

void Phases::FindBackwards() {
  bool inside = false;
  std::vector<int> sizes;
  for (const Allocation& a : ledger.allocations) {
    if (a.made == kBefore || a.made >= end) continue;
    const Thread thread = ThreadOf(a);
    if (thread == Thread::kMain) inside = false;
    if (thread != Thread::kBackward) continue;
    if (!inside) {
      backwards.push_back({.start = a.made, .end = a.made});
      sizes.push_back(0);
      inside = true;
    }
    backwards.back().end = a.made;
    ++sizes.back();
  }
  // The one that ran out counts, however little it had made, and reaches up to that moment.
  if (FailedInBackward()) {
    if (!inside) backwards.push_back({.start = *fatal});
    sizes.resize(backwards.size());
    backwards.back().end = *fatal;
    sizes.back() = kLeastBackward;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (sizes[i] >= kLeastBackward) backwards[kept++] = std::move(backwards[i]);
  }
  backwards.resize(kept);
}

Position Phases::OptimizerStart(Position after, Position before) const {
  const Position first = marks.FirstStart(after, before);
  for (const Allocation& a : Between(after, std::min(first, before))) {
    if ((Signs(a) & kSignOptimizer) != 0) return a.made;
  }
  return first;
}

/// Backwards are grouped into optimizer steps: one opens a new step if it made at least as many
/// bytes of gradients as are still there from before; otherwise it accumulated into them.
void Phases::FindSteps() {
  steps = 0;
  std::vector<AllocationIndex> alive;
  for (std::size_t k = 0; k < backwards.size(); ++k) {
    Bytes fresh = 0;
    Bytes old = 0;
    std::erase_if(alive, [&](AllocationIndex g) { return Released(at(g)) <= backwards[k].end; });
    for (AllocationIndex g : alive) old += at(g).requested;
    for (AllocationIndex g : backwards[k].gradients) fresh += at(g).requested;
    alive.insert(alive.end(), backwards[k].gradients.begin(), backwards[k].gradients.end());
    const bool opens = k == 0 || fresh >= old ||
                       OptimizerStart(backwards[k - 1].end, backwards[k].start) != kNotYet;
    if (opens) ++steps;
    backwards[k].step = steps - 1;
  }
}

void Phases::FindOptimizerEnds() {
  for (std::size_t k = 0; k < backwards.size(); ++k) {
    const Position until = k + 1 < backwards.size() ? backwards[k + 1].start : end;
    const Position result = OptimizerEndAfter(*this, k, until);
    (k + 1 < backwards.size() ? backwards[k + 1].optimizer_end : last_optimizer_end) = result;
  }
}

/// Where the program keeps the graph, its backward releases nothing: the forward is then what the
/// last line before it that called a module made.
void Phases::FindForwardOfKeptGraph(Backward& b) {
  const std::span<const Allocation> before = Between(b.optimizer_end, b.start);
  const auto last = std::find_if(before.rbegin(), before.rend(), [&](const Allocation& a) {
    return stacks.of(a.stack).caller != 0 && ThreadOf(a) == Thread::kMain;
  });
  if (last == before.rend()) return;
  b.forward_start = WholeForward(*this, b, *last);
  training_callers_.insert(stacks.of(last->stack).caller);
}

bool Phases::IsTrainingCall(StackId stack) const {
  const std::uint32_t caller = stacks.of(stack).caller;
  return caller == 0 || training_callers_.empty() || training_callers_.contains(caller);
}

void Phases::FindForwardStarts() {
  first_forward = backwards.empty() ? end : backwards.front().start;
  for (std::size_t k = 0; k < backwards.size(); ++k) {
    Backward& b = backwards[k];
    for (const Allocation& a : Between(b.optimizer_end, b.start)) {
      if (framed && ThreadOf(a) != Thread::kMain) continue;
      // One that was cut short has released next to nothing: its forward begins with a module.
      if (CutShort(b) && (Signs(a) & kSignModuleCall) != 0) {
        b.forward_start = a.made;
        break;
      }
      const Position released = Released(a);
      if (released >= b.start && released <= b.end) {
        if (!b.forward_start) b.forward_start = WholeForward(*this, b, a);
        training_callers_.insert(stacks.of(a.stack).caller);
      }
    }
    if (framed && !b.forward_start) FindForwardOfKeptGraph(b);
  }
  if (!backwards.empty() && backwards.front().forward_start) {
    first_forward = *backwards.front().forward_start;
  }
}

}  // namespace plimsoll
