// The same number of samples a step, in several passes.
#include <fmt/format.h>

#include "plan/lever.h"

namespace plimsoll {
namespace {

/// Batch norm sees the samples of one pass.
bool HasBatchNorm(const Step& step) {
  for (const CallRecord& call : step.variants.front().calls) {
    if (step.strings[call.op].find("batch_norm") != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

const PlanLever kAccumulationLever = {
    .name = "accumulation",
    .numerics =
        [](const PlanJob& job) {
          return HasBatchNorm(job.step) ? Numerics::kOther : Numerics::kSame;
        },
    .settings = SetBySearch,
    .is_used = [](const Choice& choice, const Choice&) { return choice.passes > 1; },
    .describe =
        [](const PlanJob&, const Choice& choice) {
          return fmt::format("{} passes of {}", choice.passes, choice.batch);
        },
    .code = [](const PlanJob&, const Choice& choice) -> std::vector<std::string> {
      return {fmt::format("for i, (x, y) in enumerate(loader):  # batch_size={}", choice.batch),
              fmt::format("    (criterion(model(x), y) / {}).backward()", choice.passes),
              fmt::format("    if (i + 1) % {} == 0: optimizer.step(); optimizer.zero_grad()",
                          choice.passes)};
    },
    .apply = [](const PlanJob&, const Choice& choice, Changes& changes,
                PredictOptions&) { changes.accumulate = choice.passes; },
};

}  // namespace plimsoll
