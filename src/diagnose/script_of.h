// Which script made a record.
#pragma once

#include <string>

#include "timeline/timeline.h"

namespace plimsoll {

/// The Python file whose top level called everything else, as its frames name it; empty where no
/// stack reaches that far, or it is a library's.
std::string ScriptOf(const StackTable& stacks);

}  // namespace plimsoll
