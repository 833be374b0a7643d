#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// The last captured step, and the stage in which it begins. All events, where that step goes on
/// with the backward of the one before.
struct TimedStep {
  std::span<const JobEvent> events;
  Stage stage = Stage::kUnknown;
};
TimedStep LastStepOf(const Variant& variant);

/// Of the variant's calls, by index, as far as they are of the last step: whether a checkpoint
/// repeats it in the backward. Those of a job that was captured with checkpoints are known by their
/// order: they follow each other as in the forward, where the calls of a backward go the other way.
std::vector<bool> FindRecomputed(const Job& job, const Variant& variant);

}  // namespace plimsoll
