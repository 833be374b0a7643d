// The flags that say how a model is fine-tuned: --full, --lora R, --qlora R.
#pragma once

#include "base/result.h"
#include "cli/command/flags.h"
#include "launch/tuning.h"

namespace plimsoll {

void AddTuningFlags(Flags& flags, Tuning& to);

/// What does not go together. `configuration`: a model is given by its configuration or name.
std::optional<Error> CheckTuning(const Tuning& tuning, bool configuration);

}  // namespace plimsoll
