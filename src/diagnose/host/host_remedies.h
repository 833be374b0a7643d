// What to change so that a job needs less of the host's memory, with what it would save by the
// samples.
#pragma once

#include <vector>

#include "answer/finding.h"
#include "answer/host.h"
#include "diagnose/host/host_series.h"

namespace plimsoll {

/// Against this kill, at the report's instant.
std::vector<Remedy> HostRemedies(const HostSeries& series, const HostReport& report,
                                 const HostKill& kill);

}  // namespace plimsoll
