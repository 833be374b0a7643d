// Blocks whose activations are computed again in the backward instead of being kept.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "job/transforms/checkpoint.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

LeverValue CheckpointingValue(Checkpointing checkpointing) {
  std::string text = CheckpointingText(checkpointing);
  return {std::move(text), std::move(checkpointing)};
}

Result<CheckpointSegments> SegmentsOf(const Job& job, const Variant& variant,
                                      const LeverValue& value) {
  return ResolveCheckpointing(value.As<Checkpointing>(), CheckpointBlocks(job, variant),
                              CheckpointModules(job, variant));
}

/// As Python writes it: a name comes from a file, and the lines are for people to copy.
std::string Quoted(std::string_view name) {
  std::string quoted = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::vector<std::string> CheckpointedNames(const Job& job, const LeverValue& value) {
  const Result<CheckpointSegments> segments = SegmentsOf(job, job.variants.front(), value);
  std::vector<std::string> names;
  if (!segments) return names;
  for (const std::vector<std::string>& segment : *segments) {
    names.insert(names.end(), segment.begin(), segment.end());
  }
  return names;
}

/// "checkpoint 3 of 12 blocks"
std::string DescribeCheckpointing(const Job& job, const Choice&, const LeverValue& value) {
  const std::vector<std::string> names = CheckpointedNames(job, value);
  const std::vector<std::string> blocks = CheckpointBlocks(job, job.variants.front());
  const bool only_blocks = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(blocks.begin(), blocks.end(), name) != blocks.end();
  });
  if (!only_blocks) {
    return fmt::format("checkpoint {} module{}", names.size(), names.size() > 1 ? "s" : "");
  }
  return fmt::format("checkpoint {} of {} blocks", names.size(), blocks.size());
}

}  // namespace

LeverValue ModulesValue(std::vector<std::string> modules) {
  return CheckpointingValue({.rule = Checkpointing::Rule::kNamed, .names = std::move(modules)});
}

const PlanLever kCheckpointingLever = {
    .name = "checkpointing",
    .values = "all blocks, every:2, sqrt, or names of modules (transformer.h.0,transformer.h.1)",
    .parse = [](std::string_view text) -> Result<LeverValue> {
      Result<Checkpointing> parsed = ParseCheckpointing(text);
      if (!parsed) return parsed.error();
      return CheckpointingValue(std::move(*parsed));
    },
    .numerics = SameResults,
    .describe = DescribeCheckpointing,
    .fields = [](const Job& job, const LeverValue& value) -> LeverFields {
      return {{"modules", CheckpointedNames(job, value)}};
    },
    .code = [](const Job& job, const Choice&, const LeverValue& value) -> std::vector<std::string> {
      std::vector<std::string> quoted;
      for (const std::string& name : CheckpointedNames(job, value)) quoted.push_back(Quoted(name));
      return {
          "import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper",
          fmt::format("blocks = {{model.get_submodule(n) for n in [{}]}}", Joined(quoted, ", ")),
          "wrapper.apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)"};
    },
    .rewrite = [](Job& job, Variant& variant, const LeverValue& value) -> std::optional<Error> {
      const Result<CheckpointSegments> segments = SegmentsOf(job, variant, value);
      if (!segments) return segments.error();
      variant = AddCheckpointing(job, variant, *segments);
      return std::nullopt;
    },
};

}  // namespace plimsoll
