// Who holds the memory at an instant, by source line and category.
#pragma once

#include <vector>

#include "answer/explanation.h"
#include "base/hash.h"
#include "diagnose/attribution/attribution.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

/// The largest first. Bytes are whole blocks.
std::vector<Holder> HoldersAt(const Phases& phases, const Attribution& attribution, Position at);

/// The variable that kept each block when the record was made, by the block's address.
using OwnerNames = HashMap<Address, StringId>;
OwnerNames OwnersOf(const Timeline& timeline);
/// Of an allocation that was alive then; not valid where the record does not tell.
StringId OwnerOf(const OwnerNames& names, const Allocation& allocation);

/// The stack that says whose an allocation is: its own, or that of the forward which an event of
/// the backward thread belongs to.
StackId NamingStack(const Phases& phases, const Allocation& allocation);

/// The place that an allocation is named by: the user's line, else the line of the forward that an
/// event of the backward thread belongs to, else what can be said of it.
std::string PlaceOf(const Phases& phases, const Attribution& attribution, AllocationIndex a);

/// On the way from the program's outermost frame to where an allocation was made, the first line
/// that ordinary activations do not come through: the line of the loop that is special about it.
std::string OwnLine(const Phases& phases, const Attribution& attribution, StackId stack);

}  // namespace plimsoll
