// The first sentences of the answer.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"
#include "base/text.h"

namespace plimsoll {

/// Two or three sentences that a newcomer understands: what was asked for, why it could not be had,
/// what fills the device; for a run that ended well, what its peak is made of.
std::string TraceVerdict(const RankReport& rank, const std::vector<Finding>& findings);

/// "activations (7.51 GiB), parameters (118.46 MiB) and temporaries": the largest lines in words.
std::string LargestLines(const RankReport& rank, std::size_t most);

}  // namespace plimsoll
