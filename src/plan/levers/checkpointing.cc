// Blocks whose activations are computed again in the backward instead of being kept.
#include <fmt/format.h>

#include <algorithm>

#include "plan/lever.h"
#include "step/transforms/checkpoint.h"

namespace plimsoll {
namespace {

CheckpointSegments SegmentsOf(const Step& step, const Variant& variant, std::string_view value) {
  const Result<CheckpointSegments> segments =
      ParseCheckpointing(value, CheckpointBlocks(step, variant));
  return segments ? *segments : CheckpointSegments();
}

std::vector<std::string> Names(const Step& step, const Choice& choice) {
  std::vector<std::string> names;
  for (const std::vector<std::string>& segment :
       SegmentsOf(step, step.variants.front(), choice.Get(kCheckpointingLever.name))) {
    for (const std::string& block : segment) names.push_back(fmt::format("\"{}\"", block));
  }
  return names;
}

}  // namespace

const PlanLever kCheckpointingLever = {
    .name = "checkpointing",
    .values = "all blocks, every:2, sqrt, or names of blocks (transformer.h.0,transformer.h.1)",
    .numerics = SameResults,
    .describe =
        [](const Step& step, const Choice& choice) {
          const std::size_t all = CheckpointBlocks(step, step.variants.front()).size();
          return fmt::format("checkpoint {} of {} blocks", Names(step, choice).size(), all);
        },
    .code = [](const Step& step, const Choice& choice) -> std::vector<std::string> {
      return {"import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper",
              fmt::format("blocks = {{model.get_submodule(n) for n in [{}]}}",
                          fmt::join(Names(step, choice), ", ")),
              "wrapper.apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)"};
    },
    .rewrite = [](Step& step, Variant& variant, std::string_view value) -> std::optional<Error> {
      const Result<CheckpointSegments> segments =
          ParseCheckpointing(value, CheckpointBlocks(step, variant));
      if (!segments) return segments.error();
      variant = AddCheckpointing(step, variant, *segments);
      return std::nullopt;
    },
};

}  // namespace plimsoll
