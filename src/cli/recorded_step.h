// Two snapshots of one job at two batch sizes, made into a step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "step/file/step.h"

namespace plimsoll {

Result<Step> ReadRecordedStep(const std::string& small_file, const std::string& large_file,
                              std::pair<std::int64_t, std::int64_t> batches);

}  // namespace plimsoll
