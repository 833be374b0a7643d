// Blocks of a trial by the line that made them.
#pragma once

#include <cstdint>
#include <vector>

#include "answer/holder.h"
#include "job/trial/trial.h"

namespace plimsoll {

/// The largest first; layers that are alike are folded.
std::vector<Holder> HeldBy(const Trial& trial, const std::vector<std::uint32_t>& blocks);

}  // namespace plimsoll
