// Snapshots of one job, two at two batch sizes or more at several points of batch and length, made
// into a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "job/file/forms.h"
#include "job/file/job.h"

namespace plimsoll {

Result<Job> ReadRecordedJob(const std::string& small_file, const std::string& large_file,
                            std::pair<std::int64_t, std::int64_t> batches);
/// As many files as points.
Result<Job> ReadRecordedJob(const std::vector<std::string>& files,
                            const std::vector<Extent>& points);

/// Batch and length of each snapshot: "2x256,4x256,2x512".
std::optional<Error> ReadPoints(const std::string& text, std::vector<Extent>& to);
/// As it reads them.
std::string PointsText(const std::vector<Extent>& points);

}  // namespace plimsoll
