// Blocks whose activations are computed again in the backward instead of being kept.
#include <fmt/format.h>

#include "plan/lever.h"
#include "step/transforms/checkpoint.h"

namespace plimsoll {

extern const PlanLever kCheckpointingLever;
const PlanLever kCheckpointingLever = {
    .name = "checkpointing",
    .numerics = SameResults,
    .settings = SetBySearch,
    .is_used = [](const Choice& choice, const Choice&) { return !choice.checkpointed.empty(); },
    .describe =
        [](const PlanJob& job, const Choice& choice) {
          const std::size_t all =
              CheckpointBlocks(job.step, job.step.variants[choice.variant]).size();
          return fmt::format("checkpoint {} of {} blocks", choice.checkpointed.size(), all);
        },
    .code = [](const PlanJob&, const Choice& choice) -> std::vector<std::string> {
      std::vector<std::string> names;
      for (const std::string& block : choice.checkpointed) {
        names.push_back(fmt::format("\"{}\"", block));
      }
      return {
          "import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper",
          fmt::format("blocks = {{model.get_submodule(n) for n in [{}]}}", fmt::join(names, ", ")),
          "wrapper.apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)"};
    },
    .apply =
        [](const PlanJob&, const Choice& choice, Changes& changes, PredictOptions&) {
          if (!choice.checkpointed.empty()) {
            changes.checkpoint = fmt::format("{}", fmt::join(choice.checkpointed, ","));
          }
        },
};

}  // namespace plimsoll
