#include "diagnose/host/host_series.h"

#include <algorithm>

namespace plimsoll {
namespace {

void SetLeft(const HostRecord& record, const HostSample& sample, HostTotal& total) {
  total.left = sample.available;
  // Swap that is free is taken before anybody is killed.
  if (total.left && sample.swap_free) *total.left += *sample.swap_free;
  if (!record.group || !record.group->limit || !sample.group) return;
  const Bytes of_group = std::max<Bytes>(0, *record.group->limit - *sample.group);
  if (total.left && *total.left < of_group) return;
  total.left = of_group;
  total.kind = HostLimitKind::kGroup;
}

template <typename T>
const T* LastUntil(const std::vector<T>& all, double time) {
  const auto after = std::ranges::upper_bound(all, time, {}, &T::time);
  return after == all.begin() ? nullptr : &*(after - 1);
}

}  // namespace

HostSeries::HostSeries(const HostRecord& record) : record_(record) {
  points_.resize(record.processes.size());
  deaths_.resize(record.processes.size());
  for (const HostDeath& death : record.deaths) {
    if (deaths_[death.process] == nullptr) deaths_[death.process] = &death;
  }
  for (std::size_t i = 0; i < record.processes.size(); ++i) by_pid_[record.processes[i].pid] = i;
  // The last proportional size of each, and what was resident then.
  std::vector<std::optional<std::pair<Bytes, Bytes>>> asked(record.processes.size());
  for (const HostSample& sample : record.samples) {
    HostTotal total{.time = sample.time, .together = sample.others};
    for (const HostShare& share : sample.held) {
      // It is dead already, and nobody has asked for it yet.
      if (share.resident == 0) continue;
      auto& last = asked[share.process];
      if (share.proportional) last = {*share.proportional, share.resident};
      Bytes own = share.resident;
      if (last) own = std::clamp<Bytes>(last->first + share.resident - last->second, 0, own);
      total.counted_twice |= !last && share.resident >= 64 * kMiB;
      total.together += own;
      points_[share.process].push_back({sample.time, share, own});
    }
    SetLeft(record, sample, total);
    totals_.push_back(total);
  }
}

std::optional<Bytes> HostSeries::LimitOf(HostLimitKind kind) const {
  if (kind == HostLimitKind::kGroup) return record_.group->limit;
  return record_.memory;
}

std::optional<std::size_t> HostSeries::Find(std::int64_t pid) const {
  const auto found = by_pid_.find(pid);
  return found == by_pid_.end() ? std::nullopt : std::optional(found->second);
}

const HostTotal* HostSeries::TotalAt(double time) const { return LastUntil(totals_, time); }

const HostPoint* HostSeries::PointAt(std::size_t process, double time) const {
  return LastUntil(points_[process], time);
}

std::optional<HostGrowth> GrowthOf(const std::vector<HostPoint>& points, double until,
                                   Bytes least) {
  const HostPoint* const last = LastUntil(points, until);
  if (last == nullptr) return std::nullopt;
  const auto end = points.begin() + (last - points.data()) + 1;
  const auto lowest = std::ranges::min_element(
      points.begin(), end, {}, [](const HostPoint& point) { return point.share.resident; });
  const Bytes rise = last->share.resident - lowest->share.resident;
  if (rise < least) return std::nullopt;
  // Growth begins where it last held hardly more than that.
  const Bytes hardly_more = lowest->share.resident + rise / 20;
  auto since = end - 1;
  while (since != points.begin() && since->share.resident > hardly_more) --since;
  return HostGrowth{.from = since->share.resident,
                    .to = last->share.resident,
                    .since = since->time,
                    .until = last->time};
}

}  // namespace plimsoll
