// The private pools of a device, a row each.
#pragma once

#include "answer/explanation.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

PoolsReport PoolTable(const Phases& phases);

}  // namespace plimsoll
