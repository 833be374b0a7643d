// Reads a step file (docs/formats/step.md).
#pragma once

#include "base/result.h"
#include "files/input.h"
#include "job/file/job.h"

namespace plimsoll {

/// Whether the bytes look like a step file.
bool IsStepFile(const Input& input);

Result<Job> ReadJob(const Input& input);

}  // namespace plimsoll
