// Who was killed, as far as the deaths that were seen, the kernel's counters and the texts tell.
#pragma once

#include <vector>

#include "answer/host.h"
#include "diagnose/host/host_series.h"
#include "diagnose/host/host_study.h"

namespace plimsoll {

/// In order of time. Processes are told by their index in the record.
std::vector<HostKill> KillsIn(const HostSeries& series, const std::vector<ReportedEnd>& reported);

/// Whether so little was left at that time that the next moment could take it.
bool WasNearlyFull(const HostSeries& series, double time);

}  // namespace plimsoll
