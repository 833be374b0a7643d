// Tensor parallelism: pairs of layers, the embedding and the head divided among ranks, as
// parallelize_module does with ColwiseParallel and RowwiseParallel.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct TensorParallel {
  /// At least 2.
  std::int64_t ranks = 2;
  /// SequenceParallel for what lies between the layers that are divided.
  bool sequence = false;
  /// loss_parallel: each rank has the logits of its words alone.
  bool loss = false;
  /// The model is built on the meta device, so that it is never whole on this one.
  bool meta = false;
};

/// The variant as the first of the ranks runs it. `shards_follow`: FSDP is put around it. Adds to
/// the job's strings and layouts.
Result<Variant> AddTensorParallel(Job& job, const Variant& variant, const TensorParallel& tensor,
                                  bool shards_follow);

/// The same rank with its weights on the device whole at first, and divided then. `undivided` is
/// the variant before it was divided.
Variant BuildWhole(Job& job, const Variant& variant, const Variant& undivided, std::int64_t ranks);

/// What is assumed of the job, in words for the user.
std::string DescribeTensorParallel(const Job& job, const Variant& variant,
                                   const TensorParallel& tensor);

}  // namespace plimsoll
