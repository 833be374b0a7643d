// What an evaluation that needs more than training could be changed to, and what the job takes
// then.
#pragma once

#include <cstdint>
#include <vector>

#include "job/trial/trial.h"

namespace plimsoll {

struct EvaluationChange {
  enum class Kind : std::uint8_t {
    kNoGrad,   ///< under torch.no_grad()
    kOnHost,   ///< what it keeps of each batch is taken to the host
    kSmaller,  ///< in batches of a quarter
  };
  Kind kind = Kind::kNoGrad;
  /// Of the whole job.
  TrialResult trial;
};

/// Each alone. Empty where training needs more, or nothing can be changed.
std::vector<EvaluationChange> FindEvaluationChanges(const Trial& trial);

}  // namespace plimsoll
