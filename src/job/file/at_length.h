// A job that was captured over the batch and a length, at one length: a job over the batch alone,
// as everything else takes it. The length is what the user calls it: of sequences, the side of
// images, frames. Likewise one step of a job whose data decide the sizes of its batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// Whether there is a length to choose.
bool HasLength(const Job& job);
/// What the user calls it.
const std::string& NameOfLength(const Job& job);
/// Those of the capture, each once, growing.
std::vector<std::int64_t> CapturedLengths(const Job& job);

/// The batch of all points of a job over a length, where it is one alone: what another takes is not
/// known.
std::optional<std::int64_t> OnlyBatch(const Job& job);

struct JobAtLength {
  Job job;
  /// Sizes that are no whole numbers there, and were rounded up.
  std::size_t rounded = 0;
  /// Operators of which no form explains a size: there it is drawn through the captured points.
  std::vector<std::string> unexplained = {};
};

/// `length` is within 1 and Forms::kLargestExtent.
JobAtLength AtLength(const Job& job, std::int64_t length);
/// One step of its sequence: there is nothing left to choose.
Job AtStep(const Job& job, const SequenceStep& step);

}  // namespace plimsoll
