#include "diagnose/ways/engine_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

namespace plimsoll {
namespace {

constexpr std::string_view kServe = "vllm serve ";

constexpr auto kEngineWords = std::to_array<EngineWord>({
    {Framework::kVerl, "gpu-memory-utilization", "actor_rollout_ref.rollout.gpu_memory_utilization",
     "verl/trainer/config/rollout/rollout.yaml"},
    {Framework::kVerl, "max-model-len", "actor_rollout_ref.rollout.max_model_len",
     "verl/trainer/config/rollout/rollout.yaml"},
    {Framework::kVerl, "max-num-seqs", "actor_rollout_ref.rollout.max_num_seqs",
     "verl/trainer/config/rollout/rollout.yaml"},
    {Framework::kVerl, "max-num-batched-tokens", "actor_rollout_ref.rollout.max_num_batched_tokens",
     "verl/trainer/config/rollout/rollout.yaml"},
    {Framework::kVerl, "tensor-parallel-size",
     "actor_rollout_ref.rollout.tensor_model_parallel_size",
     "verl/trainer/config/rollout/rollout.yaml"},
    {Framework::kVerl, "enforce-eager", "actor_rollout_ref.rollout.enforce_eager",
     "verl/trainer/config/rollout/rollout.yaml"},
    {Framework::kLlamaFactory, "gpu-memory-utilization", "vllm_gpu_util",
     "src/llamafactory/hparams/model_args.py"},
    {Framework::kLlamaFactory, "max-model-len", "vllm_maxlen",
     "src/llamafactory/hparams/model_args.py"},
    {Framework::kLlamaFactory, "enforce-eager", "vllm_enforce_eager",
     "src/llamafactory/hparams/model_args.py"},
    {Framework::kUnsloth, "gpu-memory-utilization", "gpu_memory_utilization",
     "unsloth/models/loader.py"},
    {Framework::kUnsloth, "max-model-len", "max_seq_length", "unsloth/models/loader.py"},
    {Framework::kTrl, "gpu-memory-utilization", "vllm_gpu_memory_utilization",
     "trl/trainer/grpo_config.py"},
    {Framework::kTrl, "max-model-len", "vllm_max_model_length", "trl/trainer/grpo_config.py"},
    {Framework::kTrl, "tensor-parallel-size", "vllm_tensor_parallel_size",
     "trl/trainer/grpo_config.py"},
});

std::string_view KeyOf(Framework framework, std::string_view flag) {
  for (const EngineWord& word : kEngineWords) {
    if (word.framework == framework && word.flag == flag) return word.key;
  }
  return {};
}

/// Whether it has words for the engine at all.
bool RunsEngine(Framework framework) {
  return std::ranges::find(kEngineWords, framework, &EngineWord::framework) != kEngineWords.end();
}

/// "key=value" pairs, or "key: value" lines, in the form of the framework.
std::vector<std::string> Typed(Framework framework, const std::vector<std::string>& pairs) {
  switch (framework) {
    case Framework::kLlamaFactory: {
      std::vector<std::string> lines = pairs;
      for (std::string& line : lines) line.replace(line.find('='), 1, ": ");
      return lines;
    }
    case Framework::kTrl:
      return {fmt::format("GRPOConfig(..., {})", fmt::join(pairs, ", "))};
    case Framework::kUnsloth:
      return {fmt::format("FastLanguageModel.from_pretrained(..., fast_inference=True, {})",
                          fmt::join(pairs, ", "))};
    default:
      return {fmt::format("{}", fmt::join(pairs, " "))};
  }
}

std::vector<std::string> WordsOf(std::string_view line) {
  std::vector<std::string> words;
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    if (!word.empty()) words.emplace_back(word);
    line.remove_prefix(std::min(line.size(), word.size() + 1));
  }
  return words;
}

/// The flags of "vllm serve MODEL --max-num-seqs 64   # …" that the framework has keys for.
std::vector<std::string> PairsOf(Framework framework, std::string_view line) {
  line = line.substr(0, line.find("   #"));
  const std::vector<std::string> words = WordsOf(line.substr(kServe.size()));
  std::vector<std::string> pairs;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) continue;
    const std::string_view key = KeyOf(framework, std::string_view(words[i]).substr(2));
    if (key.empty()) continue;
    const bool valued = i + 1 < words.size() && !words[i + 1].starts_with("--");
    pairs.push_back(fmt::format("{}={}", key, valued ? words[i + 1] : "True"));
  }
  return pairs;
}

/// The flags in a sentence by the last part of their keys.
std::string SentenceOf(Framework framework, std::string sentence) {
  for (const EngineWord& word : kEngineWords) {
    if (word.framework != framework) continue;
    const std::string flag = fmt::format("--{}", word.flag);
    const std::string_view key = word.key.substr(word.key.rfind('.') + 1);
    for (std::size_t at = sentence.find(flag); at != std::string::npos;
         at = sentence.find(flag, at + key.size())) {
      sentence.replace(at, flag.size(), key);
    }
  }
  return sentence;
}

std::optional<Remedy> Translated(Framework framework, Remedy remedy) {
  const bool served = !remedy.code.empty() && remedy.code.front().starts_with(kServe);
  if (served) {
    const std::vector<std::string> pairs = PairsOf(framework, remedy.code.front());
    if (pairs.empty()) return {};
    remedy.code = Typed(framework, pairs);
  }
  remedy.change = SentenceOf(framework, std::move(remedy.change));
  return remedy;
}

}  // namespace

std::span<const EngineWord> EngineWords() { return kEngineWords; }

std::vector<Remedy> InEngineWords(std::vector<Remedy> remedies,
                                  std::span<const Framework> frameworks) {
  const auto around = std::ranges::find_if(frameworks, RunsEngine);
  if (around == frameworks.end()) return remedies;
  std::vector<Remedy> translated;
  for (Remedy& remedy : remedies) {
    if (auto own = Translated(*around, std::move(remedy))) translated.push_back(std::move(*own));
  }
  return translated;
}

}  // namespace plimsoll
