// What `tune` does with a recorded run; `plan` does the same where it is given one.
#pragma once

#include "cli/what_if_flags.h"
#include "diagnose/what_if.h"

namespace plimsoll {

struct Tuned {
  TuneReport report;
  /// The Python file that was run, as far as the record tells.
  std::string script;
};

/// Shows how far it is.
Result<Tuned> TuneFile(const WhatIfFlags& flags);
/// kNo where nothing that was tried makes it fit.
int ExitCodeOf(const TuneReport& report);

}  // namespace plimsoll
