// The exact search: do the items fit below a capacity, and where does each lie?
//
// Items are stacked from the bottom. The state is the floor of every section: what lies below is
// decided, every item still waiting goes above. A valley is a run of sections with the same floor
// between higher ones. Whatever comes to lie in its leftmost section begins there (left of it is a
// wall) and ends within the valley; the same holds, mirrored, for its rightmost section. So the
// search takes the end of a valley with the fewest options: one of those items on the floor, or no
// item at this height, which raises the floor to the next height at which one could lie. Raising
// wastes bytes, and a section can afford only capacity - floor - bytes waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "packing/failed_states.h"
#include "packing/instance.h"
#include "packing/skyline.h"

namespace plimsoll {

/// Which item is tried first at a place.
enum class Preference { kLongest, kLargestArea, kLargest, kSmallest };

/// One run of the search. Runs that differ help because a wrong early decision can cost a run
/// everything, while another run does not make it.
struct Attempt {
  Preference preference = Preference::kLongest;
  /// 0: as the preference says; larger: more by chance.
  double noise = 0;
  std::uint64_t seed = 0;
  std::uint64_t most_nodes = 0;
};

enum class SearchOutcome { kFound, kImpossible, kGaveUp };

/// When a run has to end, whatever it has found: at the deadline, or once a run of a lower number
/// has succeeded (so that the first success counts, however the threads are scheduled).
struct StopSign {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  const std::atomic<std::uint64_t>* first_success = nullptr;
  std::uint64_t number = 0;
  /// By one search, over all its runs.
  std::uint64_t most_work = ~std::uint64_t{0};

  bool Reached() const {
    return (first_success && first_success->load(std::memory_order_relaxed) < number) ||
           std::chrono::steady_clock::now() >= deadline;
  }
};

class Search {
 public:
  Search(const std::vector<Item>& items, std::uint32_t sections, Bytes capacity);

  /// What is learnt in one run (dead ends, troubled sections) serves the next.
  SearchOutcome Run(const Attempt& attempt, const StopSign& stop);

  /// Where each item lies, after kFound.
  const std::vector<Bytes>& offsets() const { return sky_.offsets; }
  std::uint64_t nodes() const { return all_nodes_; }
  /// Items and sections that were looked at in them.
  std::uint64_t work() const { return work_; }

 private:
  using Index = Skyline::Index;
  using Span = Skyline::Span;
  static constexpr Index kNone = Skyline::kNone;

  struct Valley {
    Span span;
    Bytes floor = 0;
    Bytes left_wall = 0;
    Bytes right_wall = 0;
  };
  /// One end of a valley and what can happen there.
  struct Place {
    Valley valley;
    bool left = true;
    /// Items that may lie on the floor here, and whether it may stay empty instead.
    Index candidates = 0;
    bool may_raise = false;
    Bytes raised_floor = 0;
    double score = 0;
    Index Options() const { return candidates + (may_raise ? 1u : 0u); }
    Index Section() const { return left ? valley.span.begin : valley.span.end - 1; }
  };
  /// What the items inside a valley mean for one of its ends.
  struct EndFacts {
    Index candidates = 0;
    /// Some candidate reaches further than this section.
    bool reaches_on = false;
    /// An item at this end reaches over the wall at the other end.
    bool crosses_far_wall = false;
    /// The smallest item in the valley that is not in this section.
    Bytes smallest_elsewhere = 0;
  };
  void FindKinds();
  void SetOrder(const Attempt& attempt);

  bool Solve(Span span);
  bool SolvePieces(std::size_t base);
  void FindPieces(Span span);
  bool Branch(Span span, const Place& place);
  void CollectCandidates(const Place& place);
  bool Raise(const Place& place);
  bool TakeOnlyOption(const Place& place);
  bool MustStop();

  bool ChoosePlace(Span span, Place& best);
  bool LookAtAll(Span part, Span span, Place& best);
  bool LookAt(const Valley& valley, Span span, Place& best);
  bool CanBeFilled(const Valley& valley);
  void GatherFacts(const Valley& valley, EndFacts& left, EndFacts& right);
  bool Consider(Place place, const EndFacts& facts, bool crosses_near_wall, Place& best);
  double Score(const Place& place) const;

  Skyline sky_;
  /// How often the search failed there.
  std::vector<double> trouble_;

  std::vector<Span> pieces_;
  std::vector<Index> candidates_;
  /// Items that are alike in all respects have the same number; which were seen in the last
  /// collection.
  std::vector<Index> kind_;
  std::vector<std::uint64_t> seen_;
  std::uint64_t collection_ = 0;
  std::vector<Bytes> difference_;
  FailedStates failed_;

  const StopSign* stop_ = nullptr;
  std::uint64_t nodes_ = 0;
  std::uint64_t most_nodes_ = 0;
  std::uint64_t all_nodes_ = 0;
  std::uint64_t work_ = 0;
  std::uint64_t work_at_last_look_ = 0;
  std::uint32_t depth_ = 0;
  bool gave_up_ = false;
};

}  // namespace plimsoll
