// What the job was doing at an event, in words.
#pragma once

#include <string>

#include "diagnose/phases/phases.h"

namespace plimsoll {

/// "in the forward of step 3", "in the optimizer of step 2", "between steps 2 and 3".
std::string PhaseAt(const Phases& phases, Position at);

}  // namespace plimsoll
