// Whether the loss of a step is the mean of its samples' own losses: only then do micro-batches,
// the loss of each divided by their number, give the gradients of the whole batch.
#pragma once

#include "job/file/job.h"

namespace plimsoll {

/// Goes back from where the first step's backward begins. What it does not know, it takes for a
/// mean of the samples.
MicroBatchNumerics NumericsOfMicroBatches(const Job& job, const Variant& variant);

}  // namespace plimsoll
