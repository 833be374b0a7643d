// Matrix products of fp32 on tensor cores. Convolutions use them already, unless told otherwise.
#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kTf32Lever;
const PlanLever kTf32Lever = {
    .name = "tf32",
    .numerics = OtherRounding,
    .settings =
        [](const PlanJob& job, const Choice& choice) {
          std::vector<Choice> settings;
          if (choice.tf32 || !job.gpu.rates.tf32) return settings;
          settings.push_back(choice);
          settings.back().tf32 = true;
          return settings;
        },
    .is_used = [](const Choice& choice,
                  const Choice& captured) { return choice.tf32 && !captured.tf32; },
    .describe = [](const PlanJob&, const Choice&) { return std::string("TF32 products"); },
    .code =
        [](const PlanJob&, const Choice&) {
          return std::vector<std::string>{"torch.backends.cuda.matmul.allow_tf32 = True"};
        },
    .apply = [](const PlanJob&, const Choice& choice, Changes& changes,
                PredictOptions&) { changes.tf32 = choice.tf32; },
};

}  // namespace plimsoll
