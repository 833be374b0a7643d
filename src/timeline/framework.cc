#include "timeline/framework.h"

#include <algorithm>
#include <array>
#include <string>

namespace plimsoll {
namespace {

struct FrameworkRow {
  Framework framework;
  std::string_view name;
  bool configured;
};
constexpr auto kFrameworkRows = std::to_array<FrameworkRow>({
    {Framework::kVerl, "verl", true},
    {Framework::kAxolotl, "axolotl", true},
    {Framework::kLlamaFactory, "LLaMA-Factory", true},
    {Framework::kUnsloth, "unsloth", false},
    {Framework::kTorchtune, "torchtune", true},
    {Framework::kTorchtitan, "torchtitan", true},
    {Framework::kMegatron, "Megatron-LM", true},
    {Framework::kDiffusers, "diffusers", false},
    {Framework::kLightning, "Lightning", false},
    {Framework::kTrl, "TRL", false},
    {Framework::kHfTrainer, "transformers' Trainer", false},
    {Framework::kPeft, "PEFT", false},
    {Framework::kAccelerate, "accelerate", false},
    {Framework::kDeepSpeed, "DeepSpeed", false},
    {Framework::kVllm, "vLLM", true},
    {Framework::kOwnLoop, "a loop of one's own", false},
});
static_assert(kFrameworkRows.size() == kFrameworkCount);

/// Parts of the paths of their files. Megatron's core alone is not Megatron-LM: others build on it.
constexpr auto kFilePhrases = std::to_array<FrameworkPhrase>({
    {"/verl/trainer/", Framework::kVerl},
    {"/verl/workers/", Framework::kVerl},
    {"/verl/utils/", Framework::kVerl},
    {"/verl/single_controller/", Framework::kVerl},
    {"/axolotl/", Framework::kAxolotl},
    {"/llamafactory/", Framework::kLlamaFactory},
    {"/llmtuner/", Framework::kLlamaFactory},
    {"/unsloth/", Framework::kUnsloth},
    {"/unsloth_zoo/", Framework::kUnsloth},
    {"unsloth_compiled_cache/", Framework::kUnsloth},
    {"/torchtune/", Framework::kTorchtune},
    {"recipes/full_finetune_", Framework::kTorchtune},
    {"recipes/lora_finetune_", Framework::kTorchtune},
    {"recipes/lora_dpo_", Framework::kTorchtune},
    {"recipes/full_dpo_", Framework::kTorchtune},
    {"recipes/qat_", Framework::kTorchtune},
    {"recipes/ppo_full_finetune", Framework::kTorchtune},
    {"recipes/knowledge_distillation_", Framework::kTorchtune},
    {"/torchtitan/", Framework::kTorchtitan},
    {"/megatron/training/", Framework::kMegatron},
    {"/Megatron-LM/", Framework::kMegatron},
    {"/diffusers/", Framework::kDiffusers},
    {"train_dreambooth", Framework::kDiffusers},
    {"train_text_to_image", Framework::kDiffusers},
    {"train_controlnet", Framework::kDiffusers},
    {"train_instruct_pix2pix", Framework::kDiffusers},
    {"lightning/pytorch/", Framework::kLightning},
    {"pytorch_lightning/", Framework::kLightning},
    {"/trl/trainer/", Framework::kTrl},
    {"/trl/scripts/", Framework::kTrl},
    {"/trl/experimental/", Framework::kTrl},
    {"transformers/trainer", Framework::kHfTrainer},
    {"/peft/", Framework::kPeft},
    {"/accelerate/", Framework::kAccelerate},
    {"deepspeed/runtime/", Framework::kDeepSpeed},
    {"/vllm/", Framework::kVllm},
});

/// Command lines, and what is printed at a start.
constexpr auto kLogPhrases = std::to_array<FrameworkPhrase>({
    {"verl.trainer.main_", Framework::kVerl},
    {"actor_rollout_ref.", Framework::kVerl},
    {"axolotl train", Framework::kAxolotl},
    {"axolotl.cli", Framework::kAxolotl},
    {"[axolotl.", Framework::kAxolotl},
    {"llamafactory-cli", Framework::kLlamaFactory},
    {"llamafactory.", Framework::kLlamaFactory},
    {"==((====))==", Framework::kUnsloth},
    {"tune run", Framework::kTorchtune},
    {"INFO:torchtune", Framework::kTorchtune},
    {"Recipe with resolved config", Framework::kTorchtune},
    {"[titan]", Framework::kTorchtitan},
    {"torchtitan.train", Framework::kTorchtitan},
    {"torchtitan/train.py", Framework::kTorchtitan},
    {"pretrain_gpt.py", Framework::kMegatron},
    {"tensor-model-parallel size:", Framework::kMegatron},
    {"setting number of microbatches to", Framework::kMegatron},
    {"Loading pipeline components", Framework::kDiffusers},
    {"train_dreambooth", Framework::kDiffusers},
    {"train_text_to_image", Framework::kDiffusers},
    {"GPU available: True (", Framework::kLightning},
    {"trl sft", Framework::kTrl},
    {"trl dpo", Framework::kTrl},
    {"trl grpo", Framework::kTrl},
    {"trl/scripts/", Framework::kTrl},
    {"***** Running training", Framework::kHfTrainer},
    {"Instantaneous batch size per device", Framework::kHfTrainer},
    {"trainable%:", Framework::kPeft},
    {"accelerate launch", Framework::kAccelerate},
    {"accelerate.commands.launch", Framework::kAccelerate},
    {"DeepSpeed info:", Framework::kDeepSpeed},
    {"vllm serve", Framework::kVllm},
    {"vllm.entrypoints", Framework::kVllm},
    {"(EngineCore", Framework::kVllm},
});

/// What a framework always runs on.
struct Foundation {
  Framework framework;
  Framework below;
};
constexpr auto kFoundations = std::to_array<Foundation>({
    {Framework::kAxolotl, Framework::kHfTrainer},
    {Framework::kLlamaFactory, Framework::kHfTrainer},
    {Framework::kUnsloth, Framework::kHfTrainer},
    {Framework::kTrl, Framework::kHfTrainer},
});

const FrameworkRow& FrameworkRowOf(Framework framework) {
  return kFrameworkRows[static_cast<std::size_t>(framework)];
}

}  // namespace

std::string_view FrameworkName(Framework framework) { return FrameworkRowOf(framework).name; }

bool IsConfigured(Framework framework) { return FrameworkRowOf(framework).configured; }

FrameworkSet& FrameworkSet::operator|=(FrameworkSet other) {
  bits_ |= other.bits_;
  return *this;
}

void FrameworkSet::Add(Framework framework) {
  bits_ |= BitOf(framework);
  for (const Foundation& foundation : kFoundations) {
    if (foundation.framework == framework) bits_ |= BitOf(foundation.below);
  }
}

std::vector<Framework> FrameworkSet::List() const {
  std::vector<Framework> list;
  for (const FrameworkRow& row : kFrameworkRows) {
    if (Has(row.framework)) list.push_back(row.framework);
  }
  return list;
}

FrameworkSet FrameworksOfFile(std::string_view path) {
  // A file of the repository itself may be named from its root: "verl/workers/actor.py".
  std::string rooted = path.starts_with('/') ? std::string(path) : "/" + std::string(path);
  std::replace(rooted.begin(), rooted.end(), '\\', '/');
  FrameworkSet found;
  for (const FrameworkPhrase& phrase : kFilePhrases) {
    if (rooted.find(phrase.words) != std::string::npos) found.Add(phrase.framework);
  }
  return found;
}

std::vector<FrameworkPhrase> FrameworkPhrases() { return {kLogPhrases.begin(), kLogPhrases.end()}; }

}  // namespace plimsoll
