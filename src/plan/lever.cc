#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kPrecisionLever;
extern const PlanLever kTf32Lever;
extern const PlanLever kOptimizerLever;
extern const PlanLever kExpandableSegmentsLever;
extern const PlanLever kCheckpointingLever;

std::string_view NumericsName(Numerics numerics) {
  switch (numerics) {
    case Numerics::kSame:
      return "same";
    case Numerics::kRounding:
      return "rounding";
    case Numerics::kOther:
      return "other";
  }
  return "";
}

std::span<const PlanLever* const> PlanLevers() {
  // In the order in which they are told.
  static const PlanLever* const kLevers[] = {
      &kPrecisionLever,    &kTf32Lever,          &kOptimizerLever,
      &kAccumulationLever, &kCheckpointingLever, &kExpandableSegmentsLever,
  };
  return kLevers;
}

std::vector<const PlanLever*> LeversOf(const PlanJob& job, const Choice& choice) {
  std::vector<const PlanLever*> used;
  for (const PlanLever* lever : PlanLevers()) {
    if (lever->is_used(choice, job.AsCaptured())) used.push_back(lever);
  }
  return used;
}

Choice PlanJob::AsCaptured() const { return {.tf32 = step.matmul_tf32}; }

}  // namespace plimsoll
