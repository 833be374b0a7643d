// The optimizer in one kernel, which needs no lists of temporaries.
#include "step/transforms/optimizer.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

std::string ClassOf(std::string_view name) {
  return name == "adamw" ? "AdamW" : name == "adam" ? "Adam" : "SGD";
}

}  // namespace

extern const PlanLever kOptimizerLever;
const PlanLever kOptimizerLever = {
    .name = "optimizer",
    .numerics = OtherRounding,
    .settings =
        [](const PlanJob& job, const Choice& choice) {
          std::vector<Choice> settings;
          const CapturedOptimizer captured =
              OptimizerOf(job.step, job.step.variants[choice.variant]);
          if (choice.optimizer != OptimizerForm::kAsWritten || captured.name.empty()) {
            return settings;
          }
          if (!captured.fused) {
            settings.push_back(choice);
            settings.back().optimizer = OptimizerForm::kFused;
          }
          return settings;
        },
    .is_used = [](const Choice& choice,
                  const Choice& captured) { return choice.optimizer != captured.optimizer; },
    .describe = [](const PlanJob&, const Choice&) { return std::string("fused optimizer"); },
    .code =
        [](const PlanJob& job, const Choice& choice) {
          const CapturedOptimizer captured =
              OptimizerOf(job.step, job.step.variants[choice.variant]);
          return std::vector<std::string>{"optimizer = torch.optim." + ClassOf(captured.name) +
                                          "(model.parameters(), ..., fused=True)"};
        },
    .apply =
        [](const PlanJob& job, const Choice& choice, Changes& changes, PredictOptions&) {
          if (choice.optimizer == OptimizerForm::kFused) {
            changes.optimizer =
                OptimizerOf(job.step, job.step.variants[choice.variant]).name + ":fused";
          }
        },
};

}  // namespace plimsoll
