// The sizes of an epoch's batches in a step file.
#pragma once

#include <memory>

#include "files/json.h"
#include "job/file/job.h"

namespace plimsoll::step_file {

std::shared_ptr<const EpochFacts> ReadEpoch(const Json& json);

}  // namespace plimsoll::step_file
