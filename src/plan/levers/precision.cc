// Autocast, where the capture recorded it beside the job as written.
#include "plan/lever.h"

namespace plimsoll {
namespace {

const std::string& NameOf(const PlanJob& job, const Choice& choice) {
  return job.step.variants[choice.variant].precision;
}

}  // namespace

extern const PlanLever kPrecisionLever;
const PlanLever kPrecisionLever = {
    .name = "precision",
    .numerics = OtherRounding,
    .settings =
        [](const PlanJob& job, const Choice& choice) {
          std::vector<Choice> settings;
          for (std::size_t i = 1; i < job.step.variants.size(); ++i) {
            Choice other = choice;
            other.variant = i;
            settings.push_back(std::move(other));
          }
          return settings;
        },
    .is_used = [](const Choice& choice,
                  const Choice& captured) { return choice.variant != captured.variant; },
    .describe =
        [](const PlanJob& job, const Choice& choice) {
          return NameOf(job, choice) == "amp_fp16" ? std::string("fp16 autocast")
                                                   : std::string("bf16 autocast");
        },
    .code = [](const PlanJob& job, const Choice& choice) -> std::vector<std::string> {
      if (NameOf(job, choice) == "amp_fp16") {
        return {"scaler = torch.amp.GradScaler(\"cuda\")",
                "with torch.autocast(\"cuda\", dtype=torch.float16):",
                "    loss = criterion(model(x), y)", "scaler.scale(loss).backward()",
                "scaler.step(optimizer); scaler.update()"};
      }
      return {"with torch.autocast(\"cuda\", dtype=torch.bfloat16):",
              "    loss = criterion(model(x), y)"};
    },
    .apply = [](const PlanJob& job, const Choice& choice, Changes&,
                PredictOptions& options) { options.precision = NameOf(job, choice); },
};

}  // namespace plimsoll
