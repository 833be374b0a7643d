// Matrix products of fp32 on tensor cores. Convolutions use them already, unless told otherwise.
#include <fmt/format.h>

#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kTf32Lever;
const PlanLever kTf32Lever = {
    .name = "tf32",
    .values = "on or off",
    .numerics = OtherRounding,
    .worth_trying = [](const PlanJob& job, const Variant&) -> std::vector<std::string> {
      if (job.step.matmul_tf32 || !job.gpu.rates.tf32) return {};
      return {"on"};
    },
    .time_alone = true,
    .describe =
        [](const Step&, const Choice& choice) {
          return std::string(choice.Get("tf32") == "on" ? "TF32 products" : "no TF32 products");
        },
    .fields = [](const Step&, const Choice& choice) -> LeverFields {
      return {{"on", choice.Get("tf32") == "on"}};
    },
    .code = [](const Step&, const Choice& choice) -> std::vector<std::string> {
      return {fmt::format("torch.backends.cuda.matmul.allow_tf32 = {}",
                          choice.Get("tf32") == "on" ? "True" : "False")};
    },
    .rewrite = [](Step& step, Variant&, std::string_view value) -> std::optional<Error> {
      if (value != "on" && value != "off") {
        return Error{.message = fmt::format("tf32 cannot be '{}'", value), .hint = "on or off"};
      }
      step.matmul_tf32 = value == "on";
      return std::nullopt;
    },
};

}  // namespace plimsoll
