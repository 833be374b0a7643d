// Matrix products of fp32 on tensor cores. Convolutions use them already, unless told otherwise.
#include <fmt/format.h>

#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kTf32Lever;
const PlanLever kTf32Lever = {
    .name = "tf32",
    .values = "on or off",
    .numerics = OtherRounding,
    .worth_trying = [](const PlanRequest& request, const Variant&) -> std::vector<std::string> {
      if (request.job.matmul_tf32 || !request.gpu.rates.tf32) return {};
      return {"on"};
    },
    .time_alone = true,
    .describe =
        [](const Job&, const Choice& choice) {
          return std::string(choice.Get("tf32") == "on" ? "TF32 products" : "no TF32 products");
        },
    .fields = [](const Job&, const Choice& choice) -> LeverFields {
      return {{"on", choice.Get("tf32") == "on"}};
    },
    .code = [](const Job&, const Choice& choice) -> std::vector<std::string> {
      return {fmt::format("torch.backends.cuda.matmul.allow_tf32 = {}",
                          choice.Get("tf32") == "on" ? "True" : "False")};
    },
    .rewrite = [](Job& job, Variant&, std::string_view value) -> std::optional<Error> {
      if (value != "on" && value != "off") {
        return Error{.message = fmt::format("tf32 cannot be '{}'", value), .hint = "on or off"};
      }
      job.matmul_tf32 = value == "on";
      return std::nullopt;
    },
};

}  // namespace plimsoll
