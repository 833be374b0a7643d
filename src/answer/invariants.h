// What must hold of every answer, whatever it is about. The tests, the fuzzers and debug builds
// check it; docs/explain.md lists it for people.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"

namespace plimsoll {

/// A sentence for each that is broken; nothing is the rule.
std::vector<std::string> BrokenInvariants(const Explanation& answer);

}  // namespace plimsoll
