// What each way is, and how it is typed in a loop of one's own.
#include "diagnose/ways/torch_ways.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "diagnose/ways/switches.h"

namespace plimsoll {
namespace {

constexpr auto kWays = std::to_array<WayFacts>({
    {TorchWay::kAccumulate, Lever::kSmallerBatch,
     "a smaller batch, or the same batch in several accumulation steps",
     "for i, (x, y) in enumerate(loader):\n"
     "    (loss_fn(model(x), y) / 4).backward()   # a quarter of the batch each time\n"
     "    if i % 4 == 3: optimizer.step(); optimizer.zero_grad()"},
    {TorchWay::kCheckpoint, Lever::kCheckpointing, "checkpointed activations",
     "from torch.utils.checkpoint import checkpoint\n"
     "x = checkpoint(block, x, use_reentrant=False)   # around each large block",
     "time for one more forward pass"},
    {TorchWay::kAutocast, Lever::kMixedPrecision, "bf16 autocast: activations take half",
     "with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n    loss = loss_fn(model(x), y)"},
    {TorchWay::kSmallOptimizer, Lever::kOptimizer,
     "an optimizer with less state (8-bit Adam, Adafactor)"},
    {TorchWay::kShard, Lever::kSharding,
     "sharding of parameters and optimizer over more devices (FSDP, ZeRO)"},
    {TorchWay::kFlashAttention, Lever::kOther,
     "the traceback is in attention: a kernel that stores no scores, which grow with the square of "
     "the length",
     "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
     "# transformers: from_pretrained(name, attn_implementation=\"sdpa\")"},
    {TorchWay::kChunkedLoss, Lever::kChunkedLoss,
     "the traceback is at the logits: a loss in chunks never holds them (batch x length x "
     "vocabulary) or their gradient as a whole",
     "def part(h, y): return F.cross_entropy(model.lm_head(h).float(), y, reduction=\"sum\")\n"
     "parts = zip(hidden.flatten(0, 1).chunk(8), labels.flatten().chunk(8))\n"
     "loss = sum(checkpoint(part, h, y, use_reentrant=False) for h, y in parts) / labels.numel()\n"
     "# ready-made: liger-kernel's LigerFusedLinearCrossEntropyLoss",
     "the head is computed twice"},
    {TorchWay::kFewerLogits, Lever::kOther,
     "logits only where there are labels: prompts and padding need none",
     "keep = labels != -100\nloss = F.cross_entropy(model.lm_head(hidden[keep]), labels[keep])"},
    {TorchWay::kFreeBefore, Lever::kReleaseTensors,
     "let go of the last step's tensors before the next batch comes",
     "del out, loss\noptimizer.zero_grad(set_to_none=True)"},
    {TorchWay::kCopyOnHost, Lever::kOffload,
     "the traceback is in a copy of the whole model: keep the copy in the host's memory",
     "copied = {name: t.detach().cpu() for name, t in model.state_dict().items()}"},
    {TorchWay::kLightWeights, Lever::kQuantization,
     "the traceback is where the model goes to its device, before any batch: weights in bf16, "
     "converted on the host, take half of fp32; in 8 or 4 bits less",
     "model = model.to(torch.bfloat16).to(\"cuda\")"},
    {TorchWay::kShardBuild, Lever::kSharding,
     "parameters over more devices from the start: no device ever has the whole model",
     "with torch.device(\"meta\"): model = Model(config)\n"
     "fully_shard(model); model.to_empty(device=\"cuda\")   # FSDP2; then load the weights\n"
     "# DeepSpeed: ZeRO stage 3, with deepspeed.zero.Init(): model = Model(config)"},
    {TorchWay::kLayersOnHost, Lever::kOther, "some layers in the host's memory",
     "model = AutoModel.from_pretrained(name, device_map=\"auto\")", "speed"},
    {TorchWay::kReadToHost, Lever::kOffload,
     "the traceback is in loading: read checkpoints to the host first, so that the model is not on "
     "the device twice",
     "state = torch.load(path, map_location=\"cpu\")\nmodel.load_state_dict(state); del state"},
    {TorchWay::kQuantized, Lever::kQuantization, "weights in bf16, or quantized to 8 or 4 bits",
     "model = AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16)"},
    {TorchWay::kWeightsOverMore, Lever::kSharding, "the weights over more devices"},
    {TorchWay::kOptimizerState, Lever::kOptimizer,
     "the traceback is in the optimizer: its state is made in the first step (Adam: two values for "
     "each parameter), so an optimizer with less state helps most",
     "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)   # or Adafactor"},
    {TorchWay::kNoForeach, Lever::kOther,
     "one parameter after the other: the default handles all at once and holds temporaries of "
     "their whole size",
     "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)   # or foreach=False\n"
     "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)"},
    {TorchWay::kOffloadOptimizer, Lever::kOffload, "the optimizer's state in the host's memory",
     "\"offload_optimizer\": {\"device\": \"cpu\"}   # DeepSpeed\n"
     "fully_shard(model, offload_policy=CPUOffloadPolicy())   # FSDP2",
     "speed"},
    {TorchWay::kShardOptimizer, Lever::kSharding,
     "the optimizer's state over more devices (ZeRO stage 1, FSDP)",
     "ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=lr)"},
    {TorchWay::kEvalAccumulation, Lever::kEvaluation,
     "the traceback is in Trainer's evaluation, which keeps the predictions of all batches on the "
     "GPU: move them to the host every few batches",
     "", "", true},
    {TorchWay::kPreprocessLogits, Lever::kOther, "keep what the metric needs instead of the logits",
     "", "", true},
    {TorchWay::kLossOnly, Lever::kOther, "no predictions where only the loss is wanted", "", "",
     true},
    {TorchWay::kEvalBatch, Lever::kSmallerBatch,
     "a smaller batch for evaluation, a setting of its own", "", "", true},
    {TorchWay::kNoAutograd, Lever::kEvaluation,
     "no autograd where nothing is trained, as in an evaluation: no activations are kept then; "
     "move "
     "results to the host",
     "with torch.inference_mode():\n    outputs.append(model(x).cpu())"},
    {TorchWay::kSmallerInput, Lever::kSmallerBatch,
     "a smaller batch or shorter sequences; results moved to the host"},
    {TorchWay::kGenerateWithoutAutograd, Lever::kEvaluation, "no autograd where nothing is trained",
     "with torch.inference_mode():\n    out = model.generate(...)"},
    {TorchWay::kFewerSequences, Lever::kSmallerBatch,
     "fewer sequences at once, shorter prompts, fewer new tokens"},
    {TorchWay::kSmallerCache, Lever::kOffload,
     "a KV cache in the host's memory, or with fewer bits",
     "model.generate(..., cache_implementation=\"offloaded\")   # or \"quantized\"", "speed"},
    {TorchWay::kGatherOnHost, Lever::kOffload,
     "the traceback is in saving: gather the whole state in the host's memory",
     "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
     "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
     "state = get_model_state_dict(model, options=options)"},
    {TorchWay::kSaveShards, Lever::kSharding, "each rank saves its own part: nothing is gathered",
     "torch.distributed.checkpoint.save({\"model\": model.state_dict()}, checkpoint_id=path)"},
    {TorchWay::kSaveOneByOne, Lever::kOther,
     "the traceback is in saving: copy one tensor after the other to the host, never the whole "
     "state on the device",
     "torch.save({name: t.cpu() for name, t in model.state_dict().items()}, path)"},
    {TorchWay::kSmallerUnits, Lever::kSharding,
     "the traceback is where sharded parameters are put together: gather one block at a time, and "
     "let go of it after its forward",
     "for block in model.layers: fully_shard(block, reshard_after_forward=True)\n"
     "fully_shard(model)   # FSDP1: auto_wrap_policy=..., limit_all_gathers=True"},
    {TorchWay::kFewerLive, Lever::kOther, "ZeRO stage 3 with fewer parameters gathered ahead", "",
     "speed", true},
    {TorchWay::kOptimizerLater, Lever::kOptimizer,
     "the traceback is in the optimizer, and earlier steps were done: its state was there already, "
     "and an optimizer with less of it leaves more room for the rest",
     "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)   # or Adafactor"},
    {TorchWay::kShorterSequences, Lever::kSmallerBatch,
     "the batch is 1 already: shorter sequences or smaller inputs",
     "tokenizer(text, truncation=True, max_length=1024)   # TRL: SFTConfig(..., max_length=1024)"},
    {TorchWay::kZeroStage2, Lever::kSharding,
     "ZeRO stage 2: the optimizer's state and the gradients are spread over the GPUs", "", "",
     true},
    {TorchWay::kZeroStage3, Lever::kSharding,
     "ZeRO stage 3: the parameters are spread over the GPUs too", "",
     "more communication in every step", true},
    {TorchWay::kZeroOffloadOptimizer, Lever::kOffload, "the optimizer's state in the host's memory",
     "", "the optimizer's step runs on the CPU", true},
    {TorchWay::kZeroOffloadParameters, Lever::kOther,
     "the parameters in the host's memory until they are used", "", "speed", true},
    {TorchWay::kZeroBuckets, Lever::kOther,
     "smaller buckets: DeepSpeed joins gradients and parameters in buffers of so many values", "",
     "more and smaller messages between the GPUs", true},
    // Of frameworks alone.
    {TorchWay::kOffloadActivations, Lever::kOffload,
     "activations in the host's memory until the backward needs them", "", "speed", true},
    {TorchWay::kLogProbBatch, Lever::kSmallerBatch,
     "the traceback is where log-probabilities are computed, whose logits are batch x length x "
     "vocabulary: fewer samples in one pass",
     "", "time", true},
    {TorchWay::kMergeElsewhere, Lever::kOffload,
     "the traceback is where an adapter is merged: do it where there is room", "", "", true},
    {TorchWay::kFewerTrained, Lever::kOptimizer,
     "fewer parameters that are trained: each has a gradient and the optimizer's state", "", "",
     true},
    {TorchWay::kRolloutShare, Lever::kServerSetting,
     "a smaller share of the device for the engine that generates, whose weights and KV cache stay "
     "beside the training",
     "", "speed of the generation", true},
    {TorchWay::kServerRoom, Lever::kServerSetting,
     "a lower --gpu-memory-utilization leaves room beside the KV cache, fewer --max-num-seqs and a "
     "shorter --max-model-len need less of it",
     "", "", true},
    {TorchWay::kServerQuantized, Lever::kQuantization,
     "a quantized model (AWQ, GPTQ, FP8), or --kv-cache-dtype fp8", "", "", true},
    {TorchWay::kServerParallel, Lever::kSharding, "--tensor-parallel-size over more GPUs", "", "",
     true},
    {TorchWay::kServerEager, Lever::kOther, "--enforce-eager: no CUDA graphs", "", "speed", true},
    {TorchWay::kServerSequences, Lever::kServerSetting,
     "the traceback is where the sampler is warmed up, with logits of --max-num-seqs x vocabulary: "
     "fewer of them",
     "", "fewer requests at once", true},
    {TorchWay::kServerTokens, Lever::kServerSetting,
     "the traceback is in the profile run, a forward of --max-num-batched-tokens: fewer of them",
     "", "slower prefill", true},
    {TorchWay::kServerShare, Lever::kOther,
     "a lower --gpu-memory-utilization: the KV cache is made to fill that share, and what else is "
     "on the device was not counted",
     "", "a smaller KV cache", true},
    {TorchWay::kServerGraphs, Lever::kServerSetting,
     "the traceback is where CUDA graphs are recorded, a graph for each batch size: fewer sizes",
     "", "speed of larger batches", true},
    {TorchWay::kServerWake, Lever::kServerSetting,
     "the traceback is where the engine wakes up: wake the weights first, and the KV cache when "
     "the other process has given its memory back",
     "", "", true},
    {TorchWay::kPipelineOffload, Lever::kOffload,
     "parts of the pipeline in the host's memory until they are used", "", "speed", true},
    {TorchWay::kPipelineSmaller, Lever::kSmallerBatch,
     "the VAE in tiles, smaller or fewer images at once", "", "", true},
    {TorchWay::kPipelineQuantized, Lever::kQuantization,
     "weights in bf16, or quantized to 8 or 4 bits", "", "", true},
    {TorchWay::kVaeTiles, Lever::kOther,
     "the traceback is in the VAE: a picture in tiles, one after the other", "",
     "seams that are blended, some time", true},
    {TorchWay::kPromptsApart, Lever::kOffload,
     "the traceback is where prompts are encoded: the text encoders on the device only while they "
     "run",
     "", "time", true},
    {TorchWay::kLatentsKept, Lever::kOffload,
     "the traceback is where images become latents: do it once before the training", "",
     "the same crops in every epoch", true},
    {TorchWay::kAttentionInParts, Lever::kOther,
     "the traceback is in attention: a kernel that stores no scores, which grow with the square of "
     "the number of pixels",
     "", "", true},
});

/// Ways that differ in what is said of them, and are typed alike.
TorchWay TypedAs(TorchWay way) {
  switch (way) {
    case TorchWay::kOptimizerState:
    case TorchWay::kOptimizerLater:
      return TorchWay::kSmallOptimizer;
    case TorchWay::kShardOptimizer:
    case TorchWay::kShardBuild:
    case TorchWay::kWeightsOverMore:
      return TorchWay::kShard;
    case TorchWay::kLightWeights:
      return TorchWay::kQuantized;
    default:
      return way;
  }
}

const Switch* SwitchFor(TorchWay way, Framework framework) {
  const Switch* alike = nullptr;
  for (const Switch& each : SwitchesOf(framework)) {
    if (each.way == way) return &each;
    if (each.way == TypedAs(way)) alike = &each;
  }
  return alike;
}

}  // namespace

Remedy Rule(std::string change, Lever lever, std::vector<std::string> code, std::string costs) {
  return {.change = std::move(change),
          .costs = std::move(costs),
          .basis = Basis::kRule,
          .lever = lever,
          .code = std::move(code)};
}

std::vector<std::string> LinesOf(std::string_view code) {
  std::vector<std::string> lines;
  while (!code.empty()) {
    const std::size_t cut = code.find('\n');
    lines.emplace_back(code.substr(0, cut));
    code.remove_prefix(cut == std::string_view::npos ? code.size() : cut + 1);
  }
  return lines;
}

std::span<const WayFacts> AllWays() { return kWays; }

const WayFacts& FactsOf(TorchWay way) {
  const auto at = std::ranges::find(kWays, way, &WayFacts::way);
  PLIMSOLL_CHECK(at != kWays.end());
  return *at;
}

bool TrainsByConfiguration(std::span<const Framework> frameworks) {
  return std::ranges::any_of(frameworks,
                             [](Framework f) { return IsConfigured(f) && f != Framework::kVllm; });
}

std::vector<Framework> SpokenBy(const FrameworkSet& found) {
  std::vector<Framework> frameworks = found.List();
  if (!TrainsByConfiguration(frameworks)) return frameworks;
  std::erase_if(frameworks, [](Framework f) {
    return !IsConfigured(f) && f != Framework::kDeepSpeed && f != Framework::kAccelerate;
  });
  return frameworks;
}

bool HasSwitch(TorchWay way, std::span<const Framework> frameworks) {
  return std::ranges::any_of(
      frameworks, [&](Framework framework) { return SwitchFor(way, framework) != nullptr; });
}

std::optional<Remedy> RemedyOf(TorchWay way, std::span<const Framework> frameworks) {
  const WayFacts& facts = FactsOf(way);
  for (Framework framework : frameworks) {
    const Switch* found = SwitchFor(way, framework);
    if (found == nullptr) continue;
    // Words for another way that is typed alike are not for this one.
    const bool own_words = found->way == way && !found->change.empty();
    return Rule(std::string(own_words ? found->change : facts.change), facts.lever,
                LinesOf(found->code), std::string(found->costs.value_or(facts.costs)));
  }
  if (facts.of_frameworks) return {};
  return Rule(std::string(facts.change), facts.lever, LinesOf(facts.code),
              std::string(facts.costs));
}

}  // namespace plimsoll
