// The training steps of a trace: where each backward pass runs, where the forward before it begins,
// where the optimizer ends. Found from behaviour: which thread allocates, what survives, what is
// released when; docs/attribution.md gives the rules and the traces that taught them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "allocator/record/ledger.h"
#include "diagnose/phases/optimizer_marks.h"
#include "diagnose/phases/stack_traits.h"
#include "timeline/timeline.h"

namespace plimsoll {

using AllocationIndex = std::uint32_t;

/// One backward pass, as positions of its first and last allocation.
struct Backward {
  Position start = 0;
  Position end = 0;
  /// The first allocation of the forward before it, if one can be told.
  std::optional<Position> forward_start = {};
  /// The end of the optimizer's work before that forward; the end of the backward before it where
  /// there is none.
  Position optimizer_end = kBefore;
  /// The step (from 0) that it belongs to; several with accumulation.
  std::int32_t step = 0;
  /// Gradients that it made.
  std::vector<AllocationIndex> gradients = {};
};

/// How an out-of-memory event ended.
enum class OomEnd : std::uint8_t {
  kFatal,     // nothing of note was allocated afterwards
  kFellBack,  // the library went on with less: a refused workspace
  kCaught,    // the program released memory and went on
};

/// A trace with everything that the rules look at.
class Phases {
 public:
  Phases(const Timeline& timeline, const Ledger& ledger, const StackAnalysis& stacks);

  const Timeline& timeline;
  const Ledger& ledger;
  const StackAnalysis& stacks;

  /// Whether stacks tell threads apart (one allocation in twenty has a frame that counts).
  bool framed = false;
  /// Events from here on are not behaviour: the program unwinds after running out of memory.
  Position end = 0;
  std::vector<Position> ooms;
  std::vector<OomEnd> oom_ends;
  std::optional<Position> fatal;
  OptimizerMarks marks;
  std::vector<Backward> backwards;
  std::int32_t steps = 0;
  /// Those whose optimizer was done, or had nothing to allocate, before the record ends.
  std::int32_t complete_steps = 0;
  /// The optimizer's end after the last backward.
  Position last_optimizer_end = kBefore;
  /// The first allocation of the first forward; `end` where there is none.
  Position first_forward = 0;
  /// The largest set of gradients that one backward made.
  std::vector<AllocationIndex> gradient_set;
  /// By allocation: whether it is a gradient.
  std::vector<bool> is_gradient;

  const Allocation& at(AllocationIndex a) const { return ledger.allocations[a]; }
  /// When the program let go of it; kNotYet where that was only the unwinding at the end.
  Position Released(const Allocation& a) const { return a.released >= end ? kNotYet : a.released; }
  Thread ThreadOf(const Allocation& a) const {
    return threads_[a.stack.valid() ? a.stack.index() + 1 : 0];
  }
  std::uint16_t Signs(const Allocation& a) const { return stacks.of(a.stack).signs; }
  /// The range of allocations made in (after, before).
  std::span<const Allocation> Between(Position after, Position before) const;
  AllocationIndex IndexOf(const Allocation& a) const {
    return static_cast<AllocationIndex>(&a - ledger.allocations.data());
  }
  /// Whether the record shows that something is trained: a backward, or a mark of an optimizer.
  bool Trains() const { return !backwards.empty() || marks.any; }
  /// The request that ended the program came from autograd's thread.
  bool FailedInBackward() const;
  /// Whether a backward is the one that ran out.
  bool CutShort(const Backward& b) const { return fatal && b.end >= *fatal; }
  /// Number of the backward that a position lies in or before.
  std::size_t GapOf(Position p) const;
  /// Whether the model was called from a line that training calls it from; true where unknown.
  bool IsTrainingCall(StackId stack) const;
  /// The out-of-memory that the program caught and, unwinding from it, released this one; none
  /// where it went otherwise.
  std::optional<Position> UnwoundBy(const Allocation& a) const;
  /// How many backwards, from its own on, an allocation outlived.
  std::size_t Outlived(const Allocation& a) const;

 private:
  void FindThreads();
  void FindOoms();
  void FindBackwards();
  void FindBackwardsWithoutStacks();
  void FindGradients();
  void FindOptimizerEnds();
  void FindForwardStarts();
  void FindForwardOfKeptGraph(Backward& b);
  void FindSteps();
  void CountCompleteSteps();
  /// The first sign of an optimizer's step in (after, before); kNotYet where there is none.
  Position OptimizerStart(Position after, Position before) const;

  std::vector<Thread> threads_;  // by stack, shifted by one: 0 is "no stack"
  std::vector<Position> ends_;   // of the backwards
  std::set<std::uint32_t> training_callers_;
};

}  // namespace plimsoll
