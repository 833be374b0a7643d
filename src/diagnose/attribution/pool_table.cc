#include "diagnose/attribution/pool_table.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace plimsoll {
namespace {

/// Follows what each pool holds from event to event.
class PoolSweep {
 public:
  explicit PoolSweep(const Phases& p) : p_(p), pools_(p.timeline.pools.size()) {
    for (std::size_t s = 0; s < p.timeline.segments.size(); ++s) by_address_.push_back(s);
    std::ranges::sort(by_address_, {},
                      [&](std::size_t s) { return p.timeline.segments[s].address; });
  }

  PoolsReport Run() {
    for (std::size_t i = 0; i < pools_.size(); ++i) pools_[i].id = p_.timeline.pools[i];
    Begin();
    for (std::size_t i = 0; i < p_.timeline.events.size(); ++i) Apply(i);
    NameByFinalSegments();
    return Report();
  }

 private:
  /// Before 2.12 events do not tell their pool; the segment that is there at the end does.
  std::uint8_t PoolOf(std::uint8_t told, Address address) const {
    if (p_.timeline.events_have_pools || told != 0) return told;
    const auto after = std::ranges::upper_bound(
        by_address_, address, {}, [&](std::size_t s) { return p_.timeline.segments[s].address; });
    if (after == by_address_.begin()) return 0;
    const Segment& s = p_.timeline.segments[*std::prev(after)];
    return address - s.address < static_cast<Address>(s.size) ? s.pool : std::uint8_t{0};
  }
  bool IsPrivate(std::uint8_t pool) const { return p_.timeline.pools[pool] != PoolId{}; }

  void Begin() {
    for (const MappedRange& range : p_.ledger.initial_ranges) {
      AddReserved(PoolOf(range.pool, range.address), range.size);
    }
    for (const Allocation& a : p_.ledger.allocations) {
      if (a.made != kBefore) break;
      if (a.released != kBefore) AddAllocated(PoolOf(0, a.address), a.block);
    }
  }

  void Apply(std::size_t i) {
    const Event& e = p_.timeline.events[i];
    const std::uint8_t pool = PoolOf(e.pool, e.address);
    if (e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap) {
      if (pools_[pool].made_by.empty()) pools_[pool].made_by = p_.stacks.WhereOf(e.stack);
      AddReserved(pool, e.size);
    } else if (e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap) {
      AddReserved(pool, -e.size);
    }
    const std::uint32_t id = p_.ledger.allocation_of_event[i];
    if (id == Ledger::kNoAllocation) return;
    const Allocation& a = p_.at(id);
    const auto at = static_cast<Position>(i);
    if (a.made == at) AddAllocated(pool, a.block);
    // Where it was told by the block's first event, it is told so by its last.
    if (a.released == at) AddAllocated(PoolOf(a.pool, a.address), -a.block);
  }

  void AddReserved(std::uint8_t pool, Bytes bytes) {
    pools_[pool].reserved = std::max<Bytes>(0, pools_[pool].reserved + bytes);
    pools_[pool].peak_reserved = std::max(pools_[pool].peak_reserved, pools_[pool].reserved);
    if (!IsPrivate(pool)) return;
    held_ = std::max<Bytes>(0, held_ + bytes);
    peak_held_ = std::max(peak_held_, held_);
  }
  void AddAllocated(std::uint8_t pool, Bytes bytes) {
    pools_[pool].allocated = std::max<Bytes>(0, pools_[pool].allocated + bytes);
    pools_[pool].peak_allocated = std::max(pools_[pool].peak_allocated, pools_[pool].allocated);
    if (!IsPrivate(pool)) return;
    together_ = std::max<Bytes>(0, together_ + bytes);
    peak_together_ = std::max(peak_together_, together_);
  }

  void NameByFinalSegments() {
    for (const Segment& s : p_.timeline.segments) {
      std::string& made_by = pools_[s.pool].made_by;
      if (made_by.empty()) made_by = p_.stacks.WhereOf(s.stack);
    }
  }

  PoolsReport Report() {
    PoolsReport report;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (!IsPrivate(static_cast<std::uint8_t>(i)) || pools_[i].peak_reserved == 0) continue;
      report.sum_of_peaks += pools_[i].peak_allocated;
      report.pools.push_back(std::move(pools_[i]));
    }
    report.peak_of_sum = std::min(peak_together_, report.sum_of_peaks);
    report.peak_reserved = peak_held_;
    std::ranges::stable_sort(report.pools, std::ranges::greater(), &PoolReport::peak_reserved);
    return report;
  }

  const Phases& p_;
  std::vector<PoolReport> pools_;  // by index of Timeline::pools
  std::vector<std::size_t> by_address_;
  Bytes held_ = 0;  // by all private ones
  Bytes peak_held_ = 0;
  Bytes together_ = 0;  // in use of them
  Bytes peak_together_ = 0;
};

}  // namespace

PoolsReport PoolTable(const Phases& phases) {
  return phases.timeline.pools.size() > 1 ? PoolSweep(phases).Run() : PoolsReport{};
}

}  // namespace plimsoll
