#pragma once

#include <cstdint>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// Of the variant's calls, by index: whether a checkpoint repeats it in the backward. Those of a
/// job that was captured with checkpoints are known by their order: they follow each other as in
/// the forward, where the calls of a backward go the other way.
std::vector<bool> FindRecomputed(const Job& job, const Variant& variant);

}  // namespace plimsoll
