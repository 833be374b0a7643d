// Expert parallelism: each rank holds its share of the experts, and tokens go to the ranks of those
// that they chose, and back, by all-to-all.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct ExpertParallel {
  /// At least 2.
  std::int64_t ranks = 2;
  /// The model is built on the meta device, so that a rank never has the other experts.
  bool meta = false;
};

struct ExpertVariant {
  Variant variant;
  /// Parameters, gradients and state of experts: FSDP leaves them out.
  std::set<Storage> of_experts;
};

/// The variant as one of the ranks runs it, all of which have a batch of their own and get as many
/// tokens as they send. Adds to the job's strings and layouts.
Result<ExpertVariant> AddExpertParallel(Job& job, const Variant& variant,
                                        const ExpertParallel& expert);

/// What is assumed of the job, in words for the user.
std::string DescribeExpertParallel(const Job& job, const Variant& variant,
                                   const ExpertParallel& expert);

}  // namespace plimsoll
