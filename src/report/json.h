// Results as JSON documents; docs/json.md describes them. Nothing is computed here.
#pragma once

#include <string>

#include "diagnose/diff.h"
#include "diagnose/explanation.h"

namespace plimsoll {

/// One document of schema plimsoll.explain/1, with a newline at its end.
std::string ExplanationJson(const Explanation& explanation);
/// The same of schema plimsoll.diff/1.
std::string DifferenceJson(const Difference& difference);

}  // namespace plimsoll
