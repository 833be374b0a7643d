// What would have needed less memory, with what it saves in this record and the lines to type.
#pragma once

#include <vector>

#include "answer/finding.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {

/// Remedies for what fills the device at the instant, those that save most first. Each has a figure
/// that is computed from the record; what cannot be computed is not advised.
std::vector<Remedy> MemoryRemedies(const Evidence& evidence);

/// What is `held` of parameters, gradients and optimizer state, over the ranks of a job.
Remedy ShardedOver(std::size_t ranks, Bytes held);

}  // namespace plimsoll
