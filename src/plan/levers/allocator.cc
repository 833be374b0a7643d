// Settings of the caching allocator, above all segments that grow, so that free pieces of different
// segments do not add up to nothing.
#include "plan/lever.h"

namespace plimsoll {

const PlanLever kAllocatorLever = {
    .name = "allocator",
    .values = "a PYTORCH_CUDA_ALLOC_CONF string: expandable_segments:True",
    .numerics = SameResults,
    .worth_trying = [](const PlanRequest&, const Variant&) -> std::vector<std::string> {
      return {"expandable_segments:True"};
    },
    .describe =
        [](const Job&, const Choice& choice) {
          const std::string_view conf = choice.Get(kAllocatorLever.name);
          return std::string(conf == "expandable_segments:True" ? "expandable segments" : conf);
        },
    .fields = [](const Job&, const Choice& choice) -> LeverFields {
      return {{"conf", std::string(choice.Get(kAllocatorLever.name))}};
    },
    .code = [](const Job&, const Choice& choice) -> std::vector<std::string> {
      return {"export PYTORCH_CUDA_ALLOC_CONF=" + std::string(choice.Get(kAllocatorLever.name)) +
              "  # before Python starts"};
    },
    .configure = [](PredictOptions& options, std::string_view value) -> std::optional<Error> {
      options.conf = value;
      return std::nullopt;
    },
};

}  // namespace plimsoll
