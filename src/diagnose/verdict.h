// The first sentences of the answer.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

/// "in the forward of step 3", "in the optimizer of step 2", "between steps 2 and 3".
std::string PhaseAt(const Phases& phases, Position at);

/// Two or three sentences that a newcomer understands: what was asked for, why it could not be had,
/// what fills the device; for a run that ended well, what its peak is made of.
/// A title as the beginning of a sentence.
std::string Capitalised(std::string text);

std::string TraceVerdict(const RankReport& rank, const std::vector<Finding>& findings);

/// "activations (7.51 GiB), parameters (118.46 MiB) and temporaries": the largest lines in words.
std::string LargestLines(const RankReport& rank, std::size_t most);

}  // namespace plimsoll
