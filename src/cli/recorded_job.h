// Two snapshots of one job at two batch sizes, made into a step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

Result<Job> ReadRecordedJob(const std::string& small_file, const std::string& large_file,
                            std::pair<std::int64_t, std::int64_t> batches);

}  // namespace plimsoll
