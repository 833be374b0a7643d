// What the forward saves, kept on the host until the backward asks for it.
#include "job/transforms/offload.h"
#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kOffloadLever;
const PlanLever kOffloadLever = {
    .name = "offload",
    .values = "activations",
    .numerics = SameResults,
    .worth_trying = [](const PlanRequest&, const Variant&) -> std::vector<std::string> {
      return {"activations"};
    },
    .describe = [](const Job&, const Choice&) { return std::string("activations on the host"); },
    .fields = [](const Job&, const Choice&) -> LeverFields {
      return {{"what", std::vector<std::string>{"activations"}}};
    },
    .code = [](const Job&, const Choice&) -> std::vector<std::string> {
      return {"with torch.autograd.graph.save_on_cpu(pin_memory=True):",
              "    loss = criterion(model(x), y)"};
    },
    .rewrite = [](Job& job, Variant& variant, std::string_view value) -> std::optional<Error> {
      if (value != "activations") {
        return Error{.message = "only activations can be kept on the host",
                     .hint = "offload=activations"};
      }
      variant = AddActivationOffload(job, variant);
      return std::nullopt;
    },
};

}  // namespace plimsoll
