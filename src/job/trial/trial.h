// One run of a job put to the allocator: what every answer about a captured job is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/model/driver.h"
#include "allocator/replay/replay.h"
#include "base/result.h"
#include "job/lowering/drawn_sizes.h"
#include "job/lowering/lower.h"
#include "job/trial/setting.h"

namespace plimsoll {

/// A figure, and between which it lies.
struct Range {
  Bytes low = 0;
  Bytes best = 0;
  Bytes high = 0;
};

/// The peaks of a run, as far as they are known.
struct Needs {
  Range allocated;
  Range reserved;
  /// With the CUDA context and what else lies outside of PyTorch: what nvidia-smi would show.
  Range device;
};

/// What came of a trial.
struct TrialResult {
  /// What the run takes. Where it fits: within the card's memory and the limit, in the run that
  /// `fits` and `surely_fits` were decided by. Where it does not fit: `unlimited`.
  Needs needs;
  /// What it would take if nothing limited it. Within a limit PyTorch gives back what it has
  /// cached, and workspaces are refused; so this may exceed the room although it fits.
  Needs unlimited;
  /// Whether the ends of the ranges are known; else they are the best figures.
  bool has_ranges = false;
  /// What the allocator may ask for, and what it can hold at most: with expandable segments up to a
  /// page more.
  Bytes room = 0;
  Bytes most = 0;
  bool fits = false;
  /// Whether it fits even if everything takes as much as it may.
  bool surely_fits = false;
  /// Whether it fits if everything takes as little as it may; with the ranges alone.
  bool lower_end_fits = false;
  /// It asks for more than there are addresses for (a PiB): the figures end where it did.
  bool beyond_count = false;
  /// Workspaces of convolutions that do not fit any more, over all steps: cuDNN then takes a slower
  /// way without.
  std::int64_t workspaces_refused = 0;
  /// Convolutions (by direction) that are slow in each later step, since they were refused once.
  std::int64_t refused_in_a_step = 0;
  /// What is reserved apart from PyTorch's searches for the fastest convolutions; nothing where it
  /// does not search.
  std::optional<Bytes> reserved_without_search = {};
  /// How long a step takes, with what is refused; the ends of its range.
  double step_us = 0;
  double step_low_us = 0, step_high_us = 0;
  /// How long the GPU is busy in it; less than the step where it waits for the host.
  double gpu_busy_us = 0;
  /// How long it has nothing to do but to wait for what ranks do together.
  double waited_us = 0;

  /// Whether it stays within its room without giving cached memory back to ask for it again, which
  /// holds up every step.
  bool KeepsItsCache() const { return unlimited.reserved.best <= room; }
};

/// While one part of a job ran.
struct PartPeaks {
  Bytes allocated = 0;
  Bytes reserved = 0;
  /// The request at which allocated memory peaks first; none where it asks for nothing.
  std::optional<std::size_t> request = {};

  /// Where they are in `Peaks::parts`: what comes before the first step, the steps, and then the
  /// later parts.
  static constexpr std::size_t kBuild = 0;
  static constexpr std::size_t kSteps = 1;
  static constexpr std::size_t kLater = 2;
  static std::size_t IndexOf(const Moment& moment) {
    if (moment.part != Moment::kSteps) return static_cast<std::size_t>(moment.part) + kLater;
    return moment.step < 0 ? kBuild : kSteps;
  }
};

/// The peaks of one replay.
struct Peaks {
  Bytes allocated = 0;
  Bytes reserved = 0;
  /// The same apart from searches for the fastest way of a call.
  Bytes settled = 0;
  bool fits = true;
  /// The request that did not fit.
  std::optional<std::size_t> failed = {};
  /// The steps, with what comes before them, and then each later part.
  std::vector<PartPeaks> parts = {};
  /// Workspaces that were refused, in all steps together.
  std::int64_t refused = 0;
  /// What is slow in the last step: the calls that were refused, in any step.
  RefusedCalls refused_calls;
  /// The request at which allocated memory peaks first.
  std::size_t request = 0;
  std::vector<Bytes> reserved_after_step;
  /// Those that it ran under.
  DeviceLimits limits;
};

/// So large that nothing runs out of addresses, to see how much a job would take.
inline constexpr DeviceLimits kUnlimitedDevice{.total = Bytes{1} << 50};
/// Where a driver puts segments is tried in so many other ways, numbered from 1.
inline constexpr std::uint64_t kShuffles = 6;
/// Sizes that are assumed are drawn anew so often (DrawnSizes).
inline constexpr int kDraws = 6;
/// Over so many steps, where nobody says how many.
inline constexpr int kDrawnSteps = 12;

class Trial;
/// Where the step allocates nothing.
std::optional<Error> AllocatesNothing(const Trial& trial);

/// Each part is computed when it is first asked for, and once. Not thread-safe, although methods
/// are const: a trial belongs to one thread.
class Trial {
 public:
  explicit Trial(Setting setting) : setting_(std::move(setting)) {}
  /// An error where the step allocates nothing.
  static Result<Trial> Of(Setting setting);

  const Setting& setting() const { return setting_; }
  /// What is asked of the allocator, with workspaces as large as is likely.
  const Lowered& lowered() const;
  /// The run without limits.
  const Peaks& unlimited() const;
  /// The run within the limits that decides whether it fits.
  const Peaks& decided() const;
  /// The run that the figures are of: the one that decided, or where that ran out, the one without
  /// limits.
  const Peaks& shown() const { return decided().fits ? decided() : unlimited(); }
  /// Whether it fits even if every workspace and the context are as large as they may be, wherever
  /// the driver puts the segments, with a margin, and without refusing anything.
  bool surely_fits() const;
  /// Whether it fits if everything takes a margin less than is likely, and the context as little as
  /// it may.
  bool lower_end_fits() const;

  /// What is reserved without limits where sizes that are assumed are drawn anew; empty where
  /// nothing is.
  const std::vector<Bytes>& drawn() const;

  /// Without the ends of the ranges, which are most of the work.
  TrialResult Best() const;
  TrialResult WithRanges() const;

  /// What it took so far, for a WorkBudget: a unit is a request put to the allocator.
  std::int64_t work() const { return work_; }
  /// What it takes to see whether it surely fits, at most.
  std::int64_t WorkToBeSure() const;

 private:
  /// What the allocator holds at most without limits, with the segments where they mostly are, and
  /// in other places.
  struct Spread {
    Bytes usual = 0;
    std::vector<Bytes> elsewhere;
  };
  Lowered Lower(Estimate estimate, int draw = 0) const;
  /// With workspaces as large as they may be.
  const Lowered& upper() const;
  const Peaks& upper_unlimited() const;
  const Spread& spread() const;
  const Spread& upper_spread() const;
  Spread FindSpread(const Lowered& lowered, Bytes usual) const;

  Peaks Run(const Lowered& lowered, const DeviceLimits& limits) const;
  ReplayResult Replay(const Lowered& lowered, const DeviceLimits& limits, Driver& driver) const;
  Peaks Decide() const;
  bool FindSurelyFits() const;
  Needs WithoutLimits() const;
  Needs WithinRoom(const Needs& unlimited) const;

  Setting setting_;
  mutable std::optional<Lowered> lowered_;
  /// Nothing where no workspace is uncertain: then `lowered_` is it.
  mutable std::optional<Lowered> upper_;
  mutable std::optional<Peaks> unlimited_;
  mutable std::optional<Peaks> decided_;
  mutable std::optional<Peaks> upper_unlimited_;
  mutable std::optional<Spread> spread_;
  mutable std::optional<Spread> upper_spread_;
  mutable std::optional<std::vector<Bytes>> drawn_;
  mutable std::optional<bool> surely_fits_;
  mutable std::optional<bool> lower_end_fits_;
  mutable std::int64_t work_ = 0;
};

}  // namespace plimsoll
