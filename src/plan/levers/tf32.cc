// Matrix products of fp32 on tensor cores. Convolutions use them already, unless told otherwise.
#include <fmt/format.h>

#include "plan/lever.h"

namespace plimsoll {
namespace {

struct Tf32Products {
  bool on = false;
};

LeverValue Tf32Value(bool on) { return {on ? "on" : "off", Tf32Products{.on = on}}; }

}  // namespace

extern const PlanLever kTf32Lever;
const PlanLever kTf32Lever = {
    .name = "tf32",
    .values = "on or off",
    .parse = [](std::string_view text) -> Result<LeverValue> {
      if (text == "on" || text == "off") return Tf32Value(text == "on");
      return Error{.message = fmt::format("tf32 cannot be '{}'", text), .hint = "on or off"};
    },
    .numerics = OtherRounding,
    .worth_trying = [](const PlanRequest& request, const Variant&) -> std::vector<LeverValue> {
      if (request.job.matmul_tf32 || !request.gpu.rates.tf32) return {};
      return {Tf32Value(true)};
    },
    .time_alone = true,
    .of_compiled = true,
    .describe =
        [](const Job&, const Choice&, const LeverValue& value) {
          return std::string(value.As<Tf32Products>().on ? "TF32 products" : "no TF32 products");
        },
    .fields = [](const Job&, const LeverValue& value) -> LeverFields {
      return {{"on", value.As<Tf32Products>().on}};
    },
    .code = [](const Job&, const Choice&, const LeverValue& value) -> std::vector<std::string> {
      return {fmt::format("torch.backends.cuda.matmul.allow_tf32 = {}",
                          value.As<Tf32Products>().on ? "True" : "False")};
    },
    .rewrite = [](Job& job, Variant&, const LeverValue& value) -> std::optional<Error> {
      job.matmul_tf32 = value.As<Tf32Products>().on;
      return std::nullopt;
    },
};

}  // namespace plimsoll
