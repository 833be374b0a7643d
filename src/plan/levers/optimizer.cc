// The optimizer in one kernel, which needs no lists of temporaries; and Adam with states of 8 bits.
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
    .describe =
        [](const PlanJob&, const Choice& choice) {
          return choice.optimizer == OptimizerForm::kFused ? std::string("fused optimizer")
                                                           : std::string("8-bit Adam");
        },
    .code = [](const PlanJob& job, const Choice& choice) -> std::vector<std::string> {
      if (choice.optimizer == OptimizerForm::kEightBit) {
        return {"optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), ...)"};
      }
      const CapturedOptimizer captured = OptimizerOf(job.step, job.step.variants[choice.variant]);
      return {"optimizer = torch.optim." + ClassOf(captured.name) +
              "(model.parameters(), ..., fused=True)"};
    },
    .apply =
        [](const PlanJob& job, const Choice& choice, Changes& changes, PredictOptions&) {
          if (choice.optimizer == OptimizerForm::kEightBit) changes.optimizer = "adam8bit";
          if (choice.optimizer == OptimizerForm::kFused) {
            changes.optimizer =
                OptimizerOf(job.step, job.step.variants[choice.variant]).name + ":fused";
          }
        },
};

}  // namespace plimsoll
