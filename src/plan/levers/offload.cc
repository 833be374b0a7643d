// What the forward saves, kept on the host until the backward asks for it.
#include "job/transforms/offload.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

/// There is one kind.
struct ActivationOffload {};

constexpr std::string_view kActivations = "activations";

LeverValue OffloadValue() { return {std::string(kActivations), ActivationOffload{}}; }

}  // namespace

extern const PlanLever kOffloadLever;
const PlanLever kOffloadLever = {
    .name = "offload",
    .values = kActivations,
    .parse = [](std::string_view text) -> Result<LeverValue> {
      if (text == kActivations) return OffloadValue();
      return Error{.message = "only activations can be kept on the host",
                   .hint = "offload=activations"};
    },
    .numerics = SameResults,
    .worth_trying = [](const PlanRequest&, const Variant&) -> std::vector<LeverValue> {
      return {OffloadValue()};
    },
    .describe = [](const Job&, const Choice&,
                   const LeverValue&) { return std::string("activations on the host"); },
    .fields = [](const Job&, const LeverValue&) -> LeverFields {
      return {{"what", std::vector<std::string>{std::string(kActivations)}}};
    },
    .code = [](const Job&, const Choice&, const LeverValue&) -> std::vector<std::string> {
      return {"with torch.autograd.graph.save_on_cpu(pin_memory=True):",
              "    loss = criterion(model(x), y)"};
    },
    .rewrite = [](Job& job, Variant& variant, const LeverValue&) -> std::optional<Error> {
      variant = AddActivationOffload(job, variant);
      return std::nullopt;
    },
};

}  // namespace plimsoll
