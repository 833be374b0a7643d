// Reads a step file (docs/formats/step.md).
#pragma once

#include "base/input.h"
#include "base/result.h"
#include "step/file/step.h"

namespace plimsoll {

/// Whether the bytes look like a step file.
bool IsStepFile(const Input& input);

Result<Step> ReadStep(const Input& input);

}  // namespace plimsoll
