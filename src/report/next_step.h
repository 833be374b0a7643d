// The command to type after an answer.
#pragma once

#include <string>
#include <vector>

#include "report/text.h"

namespace plimsoll {

struct NextStep {
  /// As it is typed, with the user's own files, card and batch in it.
  std::string command;
  std::string purpose;
  /// Typed with it, in the same place.
  std::vector<std::string> further_lines = {};
};

/// The last lines of an answer; empty where there are no steps.
std::string NextText(const std::vector<NextStep>& steps, const TextStyle& style);

}  // namespace plimsoll
