// A command whose output is read here, for programs that are asked something.
#pragma once

#include <string>
#include <vector>

#include "launch/child.h"

namespace plimsoll {

struct CapturedChild {
  ChildEnd end;
  std::string output = {};
  /// What it wrote to standard error.
  std::string complaint = {};
};

/// With these variables set, and those of an empty value unset; standard input is empty.
CapturedChild RunCaptured(const std::vector<std::string>& command,
                          const std::vector<Variable>& more = {});

}  // namespace plimsoll
