// Segments that grow, so that free pieces of different segments do not add up to nothing.
#include "plan/lever.h"

namespace plimsoll {

extern const PlanLever kExpandableSegmentsLever;
const PlanLever kExpandableSegmentsLever = {
    .name = "expandable_segments",
    .numerics = SameResults,
    .settings =
        [](const PlanJob&, const Choice& choice) {
          std::vector<Choice> settings;
          if (choice.expandable_segments) return settings;
          settings.push_back(choice);
          settings.back().expandable_segments = true;
          return settings;
        },
    .is_used = [](const Choice& choice, const Choice&) { return choice.expandable_segments; },
    .describe = [](const PlanJob&, const Choice&) { return std::string("expandable segments"); },
    .code =
        [](const PlanJob&, const Choice&) {
          return std::vector<std::string>{
              "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # before Python starts"};
        },
    .apply =
        [](const PlanJob&, const Choice& choice, Changes&, PredictOptions& options) {
          if (choice.expandable_segments) options.conf = "expandable_segments:True";
        },
};

}  // namespace plimsoll
