#include "packing/solve.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "packing/as_they_come.h"
#include "packing/bound.h"
#include "packing/core.h"
#include "packing/greedy.h"
#include "packing/repair.h"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

/// From here on items that are alive in the same sections are first tried as one.
constexpr std::size_t kMany = 600;
/// Repairs of the best simple order before the search begins.
constexpr int kFirstRepairs = 10;
/// Attempts of the search at one height before another is tried.
constexpr std::uint64_t kFirstAttempts = 28;

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds > 0 ? std::min(seconds, 1e6) : 0.0));
}

class Packer {
 public:
  Packer(const Problem& problem, const PackOptions& options)
      : problem_(problem),
        options_(options),
        begin_(Clock::now()),
        deadline_(begin_ + Seconds(options.seconds)),
        instance_(Reduce(problem)),
        first_fit_(instance_, {.deadline = deadline_, .most_work = options.most_work}),
        core_(instance_, first_fit_) {}

  PackResult Run() {
    result_.lower_bound = MostAlive(problem_);
    // What all sizes are multiples of, every height is.
    for (const Item& item : instance_.items) step_ = std::gcd(step_, item.size);
    if (std::any_of(instance_.items.begin(), instance_.items.end(),
                    [](const Item& item) { return item.alignment > 1; })) {
      step_ = 1;
    }
    TryOrders();
    if (!Done() && options_.capacity) FitInto(*options_.capacity);
    if (!Done() && !options_.capacity) FindLeast();
    Conclude();
    return std::move(result_);
  }

 private:
  bool Known() const { return !result_.packing.offsets.empty() || problem_.buffers.empty(); }
  Bytes Height() const { return result_.packing.height; }
  /// The height to aim for first.
  Bytes Goal() const {
    return std::max(result_.lower_bound, options_.capacity.value_or(result_.lower_bound));
  }
  bool Done() const { return Height() <= Goal() || TooSmall(); }
  bool TooSmall() const { return options_.capacity && *options_.capacity < result_.lower_bound; }

  void Keep(const std::vector<Bytes>& item_offsets) {
    Packing packing = Expand(problem_, instance_, item_offsets);
    if (Known() && packing.height >= Height()) return;
    result_.packing = std::move(packing);
    if (options_.on_better) options_.on_better(Height(), result_.lower_bound);
  }

  std::uint64_t NodesLeft() const {
    return options_.most_nodes - std::min(options_.most_nodes, result_.nodes);
  }
  std::uint64_t WorkLeft() const {
    return options_.most_work - std::min(options_.most_work, work_ + first_fit_.work());
  }
  bool OutOfTime() const {
    return Clock::now() >= deadline_ || NodesLeft() == 0 || WorkLeft() == 0;
  }

  /// The simple orders, and then a few repairs of the best: enough for most real traces.
  void TryOrders() {
    std::vector<std::uint32_t> best;
    for (const Order order : {Order::kLargestFirst, Order::kBusiestFirst, Order::kLargestAreaFirst,
                              Order::kLongestFirst}) {
      const std::vector<std::uint32_t> items = InOrder(instance_, order);
      const Bytes before = Height();
      if (!first_fit_.PlaceAll(items, Fit::kLowest)) return KeepSomething();
      Keep(first_fit_.offsets());
      if (Done() || OutOfTime()) return;
      if (best.empty() || Height() < before) best = items;
    }
    RepairOrder(best, kFirstRepairs);
  }

  /// Where not even one order could be gone through.
  void KeepSomething() {
    if (!Known()) result_.packing = PackAsTheyCome(problem_);
  }

  void RepairOrder(const std::vector<std::uint32_t>& order, int steps) {
    Repair repair(instance_, first_fit_, order);
    for (int step = 0; step < steps && !Done() && !OutOfTime(); ++step) {
      if (!repair.Step(Goal() - instance_.bottom_size)) return;
      Keep(repair.offsets());
    }
  }

  /// Whether all fits below `height`, by the search.
  SearchOutcome TryOnce(Bytes height, SameSections same, const Effort& effort) {
    const SearchResult found = core_.Solve(height - instance_.bottom_size, same, effort);
    result_.nodes += found.nodes;
    work_ += found.work;
    if (core_.best_height() < Height() - instance_.bottom_size) Keep(core_.best_offsets());
    // A proof about merged items says nothing about the items.
    if (found.outcome == SearchOutcome::kImpossible && same == SameSections::kMerged) {
      return SearchOutcome::kGaveUp;
    }
    if (found.outcome == SearchOutcome::kImpossible) {
      result_.lower_bound = std::max(result_.lower_bound, height + step_);
    }
    return found.outcome;
  }

  /// Large instances are tried with merged items first, which is much faster.
  SearchOutcome Try(Bytes height, Effort effort) {
    if (instance_.items.size() > kMany) {
      Effort half = effort;
      half.deadline = Clock::now() + (effort.deadline - Clock::now()) / 2;
      half.most_nodes = effort.most_nodes / 2;
      half.most_work = effort.most_work / 2;
      const SearchOutcome outcome = TryOnce(height, SameSections::kMerged, half);
      if (outcome != SearchOutcome::kGaveUp) return outcome;
      effort.most_nodes -= half.most_nodes;
      effort.most_work -= half.most_work;
    }
    return TryOnce(height, SameSections::kApart, effort);
  }

  /// So many tenths of the time and of the states that are left.
  Effort Tenths(int tenths) const {
    const Clock::time_point now = Clock::now();
    return {.deadline = now + (deadline_ - now) / 10 * tenths,
            .threads = options_.threads > 0 ? options_.threads
                                            : std::max(1u, std::thread::hardware_concurrency()),
            .most_nodes = (NodesLeft() + 9) / 10 * static_cast<std::uint64_t>(tenths),
            .most_work = (WorkLeft() + 9) / 10 * static_cast<std::uint64_t>(tenths)};
  }

  /// The capacity, and in turn less: a tighter search wastes less time on what cannot become good,
  /// and there is often a solution. More attempts in each round.
  void FitInto(Bytes capacity) {
    std::uint64_t first = 0;
    for (std::uint64_t end = kFirstAttempts; !Done() && !OutOfTime(); end *= 2) {
      for (const Bytes height : {capacity, result_.lower_bound}) {
        Effort effort = Tenths(10);
        effort.first_attempt = first;
        effort.end_attempt = end;
        Try(height, effort);
        if (Done() || OutOfTime()) return;
      }
      first = end;
    }
  }

  /// The bound first, then halving between what is out of reach and what is known.
  void FindLeast() {
    Bytes too_low = result_.lower_bound;
    if (OutOfTime()) return;
    if (Try(too_low, Tenths(6)) == SearchOutcome::kFound) return;
    while (too_low + step_ < Height() && !OutOfTime()) {
      const Bytes middle = too_low + (Height() - too_low) / step_ / 2 * step_;
      if (Try(middle, Tenths(3)) != SearchOutcome::kFound) too_low = middle;
    }
  }

  void Conclude() {
    result_.cut_short = !Done() && OutOfTime();
    result_.optimal = Height() == result_.lower_bound;
    if (options_.capacity) {
      const bool proven = *options_.capacity < result_.lower_bound;
      result_.fits = Height() <= *options_.capacity ? Fits::kYes
                     : proven                       ? Fits::kNot
                                                    : Fits::kUnknown;
    }
    result_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  const Problem& problem_;
  const PackOptions& options_;
  const Clock::time_point begin_;
  const Clock::time_point deadline_;
  const Instance instance_;
  FirstFit first_fit_;
  Core core_;
  Bytes step_ = 0;
  /// Of the search; the first fit counts its own.
  std::uint64_t work_ = 0;
  PackResult result_;
};

}  // namespace

Result<PackResult> Pack(const Problem& problem, const PackOptions& options) {
  if (auto error = CheckProblem(problem)) return *error;
  return Packer(problem, options).Run();
}

}  // namespace plimsoll
