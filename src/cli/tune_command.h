// What `tune` does with a recorded run; `plan` does the same where it is given one.
#pragma once

#include "cli/what_if_flags.h"
#include "diagnose/what_if.h"

namespace plimsoll {

/// Shows how far it is.
Result<TuneReport> TuneFile(const WhatIfFlags& flags);
/// kNo where nothing that was tried makes it fit.
int ExitCodeOf(const TuneReport& report);

}  // namespace plimsoll
