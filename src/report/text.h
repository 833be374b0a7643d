// Results as text for a terminal. Nothing is computed here.
#pragma once

#include <string>

#include "diagnose/diff.h"
#include "diagnose/explanation.h"

namespace plimsoll {

struct TextStyle {
  bool colour = false;
  int width = 100;
};

std::string ExplanationText(const Explanation& explanation, const TextStyle& style);
std::string DifferenceText(const Difference& difference, const TextStyle& style);

}  // namespace plimsoll
