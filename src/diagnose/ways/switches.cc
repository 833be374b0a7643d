#include "diagnose/ways/switches.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

struct SourceRow {
  Framework framework;
  FrameworkSource source;
};
constexpr auto kSources = std::to_array<SourceRow>({
    {Framework::kVerl, {"volcengine/verl", "b178a3cd5", "January 2026"}},
    {Framework::kAxolotl, {"axolotl-ai-cloud/axolotl", "067b021c8", "July 2026"}},
    {Framework::kLlamaFactory, {"hiyouga/LLaMA-Factory", "ff6d4d12e", "August 2026"}},
    {Framework::kUnsloth, {"unslothai/unsloth", "015bdef0d", "August 2026"}},
    {Framework::kTorchtune, {"pytorch/torchtune", "bd2a0fc7c", "April 2026"}},
    {Framework::kTorchtitan, {"pytorch/torchtitan", "b5bcd76c6", "August 2026"}},
    {Framework::kMegatron, {"NVIDIA/Megatron-LM", "d98e8a64d", "August 2026"}},
    {Framework::kDiffusers, {"huggingface/diffusers", "58eb52c08", "August 2026"}},
    {Framework::kLightning, {"Lightning-AI/pytorch-lightning", "7f0c3436c", "July 2026"}},
    {Framework::kTrl, {"huggingface/trl", "f2cd57710", "July 2026"}},
    {Framework::kHfTrainer, {"huggingface/transformers", "d56c55bf5", "August 2026"}},
    {Framework::kPeft, {"huggingface/peft", "5d602fdbf", "August 2026"}},
    {Framework::kAccelerate, {"huggingface/accelerate", "16cb6eb8", "July 2026"}},
    {Framework::kDeepSpeed, {"deepspeedai/DeepSpeed", "edaa72212", "August 2026"}},
    {Framework::kVllm, {"vllm-project/vllm", "a014e35f3", "August 2026"}},
});

}  // namespace

FrameworkSource SourceOf(Framework framework) {
  const auto at = std::ranges::find(kSources, framework, &SourceRow::framework);
  return at == kSources.end() ? FrameworkSource{} : at->source;
}

std::span<const Switch> SwitchesOf(Framework framework) {
  for (auto* of_kind : {SwitchesOfTrainers, SwitchesOfRecipes, SwitchesOfEngines}) {
    const std::span<const Switch> found = of_kind(framework);
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace plimsoll
