// What the flags of plimsoll-train leave open, contradict or have no use for.
#pragma once

#include <string>
#include <vector>

#include "train/program/flags.h"

namespace plimsoll::train {

/// After parsing: sizes that the model leaves open; and what cannot work is refused at once.
void Complete(Flags& flags);

/// Those that were given and change nothing, a sentence each.
std::vector<std::string> FlagsWithoutEffect(const Flags& flags);

/// The model and the flags that were given of what the run depends on: "gpt --heads 4 --width 64".
std::string GivenSizes(const Flags& flags);

}  // namespace plimsoll::train
