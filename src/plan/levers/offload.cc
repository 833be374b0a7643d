// What the forward saves, kept on the host until the backward asks for it.
#include "step/transforms/offload.h"
#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kOffloadLever;
const PlanLever kOffloadLever = {
    .name = "offload",
    .values = "activations",
    .numerics = SameResults,
    .worth_trying = [](const PlanJob&, const Variant&) -> std::vector<std::string> {
      return {"activations"};
    },
    .describe = [](const Step&, const Choice&) { return std::string("activations on the host"); },
    .fields = [](const Step&, const Choice&) -> LeverFields {
      return {{"what", std::vector<std::string>{"activations"}}};
    },
    .code = [](const Step&, const Choice&) -> std::vector<std::string> {
      return {"with torch.autograd.graph.save_on_cpu(pin_memory=True):",
              "    loss = criterion(model(x), y)"};
    },
    .rewrite = [](Step& step, Variant& variant, std::string_view value) -> std::optional<Error> {
      if (value != "activations") {
        return Error{.message = "only activations can be kept on the host",
                     .hint = "offload=activations"};
      }
      variant = AddActivationOffload(step, variant);
      return std::nullopt;
    },
};

}  // namespace plimsoll
