// A host record, looked at process by process: what each held when, how much it grew, and what all
// held together.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "answer/host.h"
#include "timeline/host_record.h"

namespace plimsoll {

struct HostPoint {
  double time = 0;
  HostShare share;
  /// What it holds for itself: its proportional size, followed by what was added to the resident
  /// one since that was last asked for; the resident one where it was never asked for.
  Bytes own = 0;
};

/// All that all processes held at one sample.
struct HostTotal {
  double time = 0;
  Bytes together = 0;
  bool counted_twice = false;
  /// Of the machine or of the control group, whichever has less left.
  std::optional<Bytes> left;
  HostLimitKind kind = HostLimitKind::kMachine;
};

class HostSeries {
 public:
  explicit HostSeries(const HostRecord& record);

  const HostRecord& record() const { return record_; }
  const std::vector<HostPoint>& of(std::size_t process) const { return points_[process]; }
  const std::vector<HostTotal>& totals() const { return totals_; }
  /// How it ended; null where nobody saw it.
  const HostDeath* DeathOf(std::size_t process) const { return deaths_[process]; }
  /// The one that had the number last.
  std::optional<std::size_t> Find(std::int64_t pid) const;
  /// What there is for all, by whose limit that is.
  std::optional<Bytes> LimitOf(HostLimitKind kind) const;
  /// The last sample that is not later; nothing where there is none.
  const HostTotal* TotalAt(double time) const;
  const HostPoint* PointAt(std::size_t process, double time) const;

 private:
  const HostRecord& record_;
  std::vector<std::vector<HostPoint>> points_;
  std::vector<HostTotal> totals_;
  std::vector<const HostDeath*> deaths_;
  std::map<std::int64_t, std::size_t> by_pid_;
};

/// The rise that a process had not given back at `until`: since it last held hardly more than the
/// least so far. Nothing where it is less than `least`.
std::optional<HostGrowth> GrowthOf(const std::vector<HostPoint>& points, double until, Bytes least);

}  // namespace plimsoll
