// Ways to need less memory for a script of PyTorch's: which they are, and in which order they help
// at each stage of a job.
#include <algorithm>
#include <array>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

enum class TorchWay : std::uint8_t {
  kEnd,  // of a list
  kAccumulate,
  kCheckpoint,
  kAutocast,
  kSmallOptimizer,
  kShard,
  kFlashAttention,
  kChunkedLoss,
  kFewerLogits,
  kFreeBefore,
  kCopyOnHost,
  kLightWeights,
  kShardBuild,
  kLayersOnHost,
  kReadToHost,
  kQuantized,
  kWeightsOverMore,
  kOptimizerState,
  kNoForeach,
  kOffloadOptimizer,
  kShardOptimizer,
  kEvalAccumulation,
  kPreprocessLogits,
  kLossOnly,
  kEvalBatch,
  kNoAutograd,
  kSmallerInput,
  kGenerateWithoutAutograd,
  kFewerSequences,
  kSmallerCache,
  kGatherOnHost,
  kSaveShards,
  kSaveOneByOne,
  kSmallerUnits,
  kFewerLive,
};

struct WayRow {
  TorchWay way;
  Lever lever;
  std::string_view change;
  std::string_view code = {};  // lines, separated by line ends
  std::string_view costs = {};
};

constexpr auto kWayRows = std::to_array<WayRow>({
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
     "TrainingArguments(..., eval_accumulation_steps=4)"},
    {TorchWay::kPreprocessLogits, Lever::kOther, "keep what the metric needs instead of the logits",
     "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))"},
    {TorchWay::kLossOnly, Lever::kOther, "no predictions where only the loss is wanted",
     "TrainingArguments(..., prediction_loss_only=True)"},
    {TorchWay::kEvalBatch, Lever::kSmallerBatch,
     "a smaller batch for evaluation, a setting of its own",
     "TrainingArguments(..., per_device_eval_batch_size=1)"},
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
    {TorchWay::kFewerLive, Lever::kOther, "ZeRO stage 3 with fewer parameters gathered ahead",
     "\"stage3_max_live_parameters\": 1e8, \"stage3_prefetch_bucket_size\": 1e7", "speed"},
});

struct StageOrder {
  Stage stage;
  /// How many of the ways are about this stage alone: told before whatever else is found.
  std::size_t own;
  std::array<TorchWay, 8> ways;
};
// What helps most and costs least first. Where no batch is on the device, none is made smaller.
constexpr auto kStageOrders = std::to_array<StageOrder>({
    {Stage::kUnknown,
     0,
     {TorchWay::kAccumulate, TorchWay::kCheckpoint, TorchWay::kAutocast, TorchWay::kSmallOptimizer,
      TorchWay::kShard}},
    {Stage::kForward,
     1,
     {TorchWay::kFlashAttention, TorchWay::kAccumulate, TorchWay::kCheckpoint, TorchWay::kAutocast,
      TorchWay::kSmallOptimizer, TorchWay::kShard}},
    {Stage::kBackward,
     1,
     {TorchWay::kFlashAttention, TorchWay::kAccumulate, TorchWay::kCheckpoint, TorchWay::kAutocast,
      TorchWay::kSmallOptimizer, TorchWay::kShard}},
    {Stage::kTransfer,
     0,
     {TorchWay::kAccumulate, TorchWay::kFreeBefore, TorchWay::kCheckpoint, TorchWay::kAutocast,
      TorchWay::kSmallOptimizer, TorchWay::kShard}},
    {Stage::kLoss,
     2,
     {TorchWay::kChunkedLoss, TorchWay::kFewerLogits, TorchWay::kAccumulate, TorchWay::kCheckpoint,
      TorchWay::kAutocast, TorchWay::kShard}},
    {Stage::kBuild,
     2,
     {TorchWay::kCopyOnHost, TorchWay::kLightWeights, TorchWay::kShardBuild,
      TorchWay::kLayersOnHost}},
    {Stage::kLoad,
     1,
     {TorchWay::kReadToHost, TorchWay::kQuantized, TorchWay::kLayersOnHost,
      TorchWay::kWeightsOverMore}},
    {Stage::kOptimizer,
     2,
     {TorchWay::kOptimizerState, TorchWay::kNoForeach, TorchWay::kOffloadOptimizer,
      TorchWay::kShardOptimizer}},
    {Stage::kAllGather,
     2,
     {TorchWay::kSmallerUnits, TorchWay::kFewerLive, TorchWay::kAccumulate, TorchWay::kCheckpoint,
      TorchWay::kAutocast}},
    {Stage::kEvaluation,
     4,
     {TorchWay::kEvalAccumulation, TorchWay::kPreprocessLogits, TorchWay::kLossOnly,
      TorchWay::kNoAutograd, TorchWay::kEvalBatch, TorchWay::kSmallerInput, TorchWay::kQuantized}},
    {Stage::kGeneration,
     0,
     {TorchWay::kGenerateWithoutAutograd, TorchWay::kFewerSequences, TorchWay::kSmallerCache,
      TorchWay::kQuantized, TorchWay::kLayersOnHost}},
    {Stage::kSave, 3, {TorchWay::kGatherOnHost, TorchWay::kSaveShards, TorchWay::kSaveOneByOne}},
});

const StageOrder& OrderOf(const OomMessage& message) {
  Stage stage = message.stage;
  // Graphs are captured for serving, hardly ever for training.
  const bool open = stage == Stage::kUnknown || stage == Stage::kForward;
  if (open && message.private_pools) stage = Stage::kEvaluation;
  const auto at = std::find_if(kStageOrders.begin(), kStageOrders.end(),
                               [&](const StageOrder& order) { return order.stage == stage; });
  return at == kStageOrders.end() ? kStageOrders.front() : *at;
}

/// Whether the text shows that the way is open to the job.
bool IsOpen(TorchWay way, const OomMessage& message) {
  const Signs& signs = message.signs;
  switch (way) {
    case TorchWay::kFlashAttention:
      return signs.attention_scores;
    case TorchWay::kEvalAccumulation:
    case TorchWay::kPreprocessLogits:
    case TorchWay::kLossOnly:
    case TorchWay::kEvalBatch:
      return signs.hf_trainer;
    case TorchWay::kSmallerInput:
      return !signs.hf_trainer;
    // Trainer evaluates without autograd.
    case TorchWay::kNoAutograd:
      return !signs.hf_trainer;
    case TorchWay::kCopyOnHost:
      return signs.deep_copy;
    case TorchWay::kLightWeights:
      return !signs.deep_copy;
    case TorchWay::kReadToHost:
      // Without a traceback, the text itself says that the weights are too large.
      return message.subject != "the weights";
    case TorchWay::kGatherOnHost:
    case TorchWay::kSaveShards:
      return signs.communicates;
    case TorchWay::kSaveOneByOne:
      return !signs.communicates;
    default:
      return true;
  }
}

Remedy RemedyOf(TorchWay way) {
  for (const WayRow& row : kWayRows) {
    if (row.way != way) continue;
    return Rule(std::string(row.change), row.lever, LinesOf(row.code), std::string(row.costs));
  }
  return {};
}

std::vector<Remedy> FirstWays(const OomMessage& message, std::size_t most) {
  std::vector<Remedy> remedies;
  const StageOrder& order = OrderOf(message);
  for (std::size_t i = 0; i < order.ways.size() && i < most; ++i) {
    if (order.ways[i] == TorchWay::kEnd) break;
    if (IsOpen(order.ways[i], message)) remedies.push_back(RemedyOf(order.ways[i]));
  }
  return remedies;
}

}  // namespace

std::vector<Remedy> StageWays(const OomMessage& message) {
  return FirstWays(message, OrderOf(message).ways.size());
}

std::vector<Remedy> OwnWaysOfStage(const OomMessage& message) {
  if (!IsTorchScript(RunnerOf(message))) return {};
  return FirstWays(message, OrderOf(message).own);
}

bool BatchMatters(const OomMessage& message) {
  switch (message.stage) {
    case Stage::kBuild:
    case Stage::kLoad:
    case Stage::kOptimizer:
    case Stage::kSave:
      return false;
    default:
      return true;
  }
}

}  // namespace plimsoll
