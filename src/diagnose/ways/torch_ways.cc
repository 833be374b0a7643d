#include "diagnose/ways/torch_ways.h"

#include <array>

namespace plimsoll {
namespace {

struct WayRow {
  Framework framework;
  TorchWay way;
  Lever lever;
  std::string_view change;
  std::string_view code = {};  // lines, separated by line ends
  std::string_view costs = {};
};

constexpr auto kWayRows = std::to_array<WayRow>({
    {Framework::kOwnLoop, TorchWay::kAccumulate, Lever::kSmallerBatch,
     "a smaller batch, or the same batch in several accumulation steps",
     "for i, (x, y) in enumerate(loader):\n"
     "    (loss_fn(model(x), y) / 4).backward()   # a quarter of the batch each time\n"
     "    if i % 4 == 3: optimizer.step(); optimizer.zero_grad()"},
    {Framework::kOwnLoop, TorchWay::kCheckpoint, Lever::kCheckpointing, "checkpointed activations",
     "from torch.utils.checkpoint import checkpoint\n"
     "x = checkpoint(block, x, use_reentrant=False)   # around each large block",
     "time for one more forward pass"},
    {Framework::kOwnLoop, TorchWay::kAutocast, Lever::kMixedPrecision,
     "bf16 autocast: activations take half",
     "with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n    loss = loss_fn(model(x), y)"},
    {Framework::kOwnLoop, TorchWay::kSmallOptimizer, Lever::kOptimizer,
     "an optimizer with less state (8-bit Adam, Adafactor)"},
    {Framework::kOwnLoop, TorchWay::kShard, Lever::kSharding,
     "sharding of parameters and optimizer over more devices (FSDP, ZeRO)"},
    {Framework::kOwnLoop, TorchWay::kFlashAttention, Lever::kOther,
     "the traceback is in attention: a kernel that stores no scores, which grow with the square of "
     "the length",
     "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
     "# transformers: from_pretrained(name, attn_implementation=\"sdpa\")"},
    {Framework::kOwnLoop, TorchWay::kChunkedLoss, Lever::kChunkedLoss,
     "the traceback is at the logits: a loss in chunks never holds them (batch x length x "
     "vocabulary) or their gradient as a whole",
     "def part(h, y): return F.cross_entropy(model.lm_head(h).float(), y, reduction=\"sum\")\n"
     "parts = zip(hidden.flatten(0, 1).chunk(8), labels.flatten().chunk(8))\n"
     "loss = sum(checkpoint(part, h, y, use_reentrant=False) for h, y in parts) / labels.numel()\n"
     "# ready-made: liger-kernel's LigerFusedLinearCrossEntropyLoss",
     "the head is computed twice"},
    {Framework::kOwnLoop, TorchWay::kFewerLogits, Lever::kOther,
     "logits only where there are labels: prompts and padding need none",
     "keep = labels != -100\nloss = F.cross_entropy(model.lm_head(hidden[keep]), labels[keep])"},
    {Framework::kOwnLoop, TorchWay::kFreeBefore, Lever::kReleaseTensors,
     "let go of the last step's tensors before the next batch comes",
     "del out, loss\noptimizer.zero_grad(set_to_none=True)"},
    {Framework::kOwnLoop, TorchWay::kCopyOnHost, Lever::kOffload,
     "the traceback is in a copy of the whole model: keep the copy in the host's memory",
     "copied = {name: t.detach().cpu() for name, t in model.state_dict().items()}"},
    {Framework::kOwnLoop, TorchWay::kLightWeights, Lever::kQuantization,
     "the traceback is where the model goes to its device, before any batch: weights in bf16, "
     "converted on the host, take half of fp32; in 8 or 4 bits less",
     "model = model.to(torch.bfloat16).to(\"cuda\")"},
    {Framework::kOwnLoop, TorchWay::kShardBuild, Lever::kSharding,
     "parameters over more devices from the start: no device ever has the whole model",
     "with torch.device(\"meta\"): model = Model(config)\n"
     "fully_shard(model); model.to_empty(device=\"cuda\")   # FSDP2; then load the weights\n"
     "# DeepSpeed: ZeRO stage 3, with deepspeed.zero.Init(): model = Model(config)"},
    {Framework::kOwnLoop, TorchWay::kLayersOnHost, Lever::kOther,
     "some layers in the host's memory",
     "model = AutoModel.from_pretrained(name, device_map=\"auto\")", "speed"},
    {Framework::kOwnLoop, TorchWay::kReadToHost, Lever::kOffload,
     "the traceback is in loading: read checkpoints to the host first, so that the model is not on "
     "the device twice",
     "state = torch.load(path, map_location=\"cpu\")\nmodel.load_state_dict(state); del state"},
    {Framework::kOwnLoop, TorchWay::kQuantized, Lever::kQuantization,
     "weights in bf16, or quantized to 8 or 4 bits",
     "model = AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16)"},
    {Framework::kOwnLoop, TorchWay::kWeightsOverMore, Lever::kSharding,
     "the weights over more devices"},
    {Framework::kOwnLoop, TorchWay::kOptimizerState, Lever::kOptimizer,
     "the traceback is in the optimizer: its state is made in the first step (Adam: two values for "
     "each parameter), so an optimizer with less state helps most",
     "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)   # or Adafactor"},
    {Framework::kOwnLoop, TorchWay::kNoForeach, Lever::kOther,
     "one parameter after the other: the default handles all at once and holds temporaries of "
     "their whole size",
     "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)   # or foreach=False\n"
     "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)"},
    {Framework::kOwnLoop, TorchWay::kOffloadOptimizer, Lever::kOffload,
     "the optimizer's state in the host's memory",
     "\"offload_optimizer\": {\"device\": \"cpu\"}   # DeepSpeed\n"
     "fully_shard(model, offload_policy=CPUOffloadPolicy())   # FSDP2",
     "speed"},
    {Framework::kOwnLoop, TorchWay::kShardOptimizer, Lever::kSharding,
     "the optimizer's state over more devices (ZeRO stage 1, FSDP)",
     "ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=lr)"},
    {Framework::kOwnLoop, TorchWay::kEvalAccumulation, Lever::kEvaluation,
     "the traceback is in Trainer's evaluation, which keeps the predictions of all batches on the "
     "GPU: move them to the host every few batches",
     "TrainingArguments(..., eval_accumulation_steps=4)"},
    {Framework::kOwnLoop, TorchWay::kPreprocessLogits, Lever::kOther,
     "keep what the metric needs instead of the logits",
     "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))"},
    {Framework::kOwnLoop, TorchWay::kLossOnly, Lever::kOther,
     "no predictions where only the loss is wanted",
     "TrainingArguments(..., prediction_loss_only=True)"},
    {Framework::kOwnLoop, TorchWay::kEvalBatch, Lever::kSmallerBatch,
     "a smaller batch for evaluation, a setting of its own",
     "TrainingArguments(..., per_device_eval_batch_size=1)"},
    {Framework::kOwnLoop, TorchWay::kNoAutograd, Lever::kEvaluation,
     "no autograd where nothing is trained, as in an evaluation: no activations are kept then; "
     "move "
     "results to the host",
     "with torch.inference_mode():\n    outputs.append(model(x).cpu())"},
    {Framework::kOwnLoop, TorchWay::kSmallerInput, Lever::kSmallerBatch,
     "a smaller batch or shorter sequences; results moved to the host"},
    {Framework::kOwnLoop, TorchWay::kGenerateWithoutAutograd, Lever::kEvaluation,
     "no autograd where nothing is trained",
     "with torch.inference_mode():\n    out = model.generate(...)"},
    {Framework::kOwnLoop, TorchWay::kFewerSequences, Lever::kSmallerBatch,
     "fewer sequences at once, shorter prompts, fewer new tokens"},
    {Framework::kOwnLoop, TorchWay::kSmallerCache, Lever::kOffload,
     "a KV cache in the host's memory, or with fewer bits",
     "model.generate(..., cache_implementation=\"offloaded\")   # or \"quantized\"", "speed"},
    {Framework::kOwnLoop, TorchWay::kGatherOnHost, Lever::kOffload,
     "the traceback is in saving: gather the whole state in the host's memory",
     "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
     "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
     "state = get_model_state_dict(model, options=options)"},
    {Framework::kOwnLoop, TorchWay::kSaveShards, Lever::kSharding,
     "each rank saves its own part: nothing is gathered",
     "torch.distributed.checkpoint.save({\"model\": model.state_dict()}, checkpoint_id=path)"},
    {Framework::kOwnLoop, TorchWay::kSaveOneByOne, Lever::kOther,
     "the traceback is in saving: copy one tensor after the other to the host, never the whole "
     "state on the device",
     "torch.save({name: t.cpu() for name, t in model.state_dict().items()}, path)"},
    {Framework::kOwnLoop, TorchWay::kSmallerUnits, Lever::kSharding,
     "the traceback is where sharded parameters are put together: gather one block at a time, and "
     "let go of it after its forward",
     "for block in model.layers: fully_shard(block, reshard_after_forward=True)\n"
     "fully_shard(model)   # FSDP1: auto_wrap_policy=..., limit_all_gathers=True"},
    {Framework::kOwnLoop, TorchWay::kFewerLive, Lever::kOther,
     "ZeRO stage 3 with fewer parameters gathered ahead",
     "\"stage3_max_live_parameters\": 1e8, \"stage3_prefetch_bucket_size\": 1e7", "speed"},
    {Framework::kOwnLoop, TorchWay::kOptimizerLater, Lever::kOptimizer,
     "the traceback is in the optimizer, and earlier steps were done: its state was there already, "
     "and an optimizer with less of it leaves more room for the rest",
     "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)   # or Adafactor"},
    {Framework::kOwnLoop, TorchWay::kShorterSequences, Lever::kSmallerBatch,
     "the batch is 1 already: shorter sequences or smaller inputs",
     "tokenizer(text, truncation=True, max_length=1024)   # TRL: SFTConfig(..., max_length=1024)"},
    {Framework::kOwnLoop, TorchWay::kZeroStage2, Lever::kSharding,
     "ZeRO stage 2: the optimizer's state and the gradients are spread over the GPUs",
     "\"zero_optimization\": {\"stage\": 2}   # in the DeepSpeed configuration"},
    {Framework::kOwnLoop, TorchWay::kZeroStage3, Lever::kSharding,
     "ZeRO stage 3: the parameters are spread over the GPUs too",
     "\"zero_optimization\": {\"stage\": 3}   # in the DeepSpeed configuration",
     "more communication in every step"},
    {Framework::kOwnLoop, TorchWay::kZeroOffloadOptimizer, Lever::kOffload,
     "the optimizer's state in the host's memory",
     "\"zero_optimization\": {..., \"offload_optimizer\": {\"device\": \"cpu\"}}   # in the "
     "DeepSpeed configuration",
     "the optimizer's step runs on the CPU"},
    {Framework::kOwnLoop, TorchWay::kZeroOffloadParameters, Lever::kOther,
     "the parameters in the host's memory until they are used",
     "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}", "speed"},
    {Framework::kOwnLoop, TorchWay::kZeroBuckets, Lever::kOther,
     "smaller buckets: DeepSpeed joins gradients and parameters in buffers of so many values",
     "\"reduce_bucket_size\": 5e7, \"allgather_bucket_size\": 5e7, \"contiguous_gradients\": true",
     "more and smaller messages between the GPUs"},

    // transformers' Trainer: {batch} and {steps} are half of the batch and as many more passes.
    {Framework::kHfTrainer, TorchWay::kAccumulate, Lever::kSmallerBatch,
     "a smaller batch in more accumulation steps: the optimizer sees as many samples as before",
     "TrainingArguments(..., per_device_train_batch_size={batch}, "
     "gradient_accumulation_steps={steps})"},
    {Framework::kHfTrainer, TorchWay::kCheckpoint, Lever::kCheckpointing,
     "checkpointed activations", "TrainingArguments(..., gradient_checkpointing=True)",
     "time for one more forward pass"},
    {Framework::kHfTrainer, TorchWay::kAutocast, Lever::kMixedPrecision,
     "bf16 autocast: activations take half", "TrainingArguments(..., bf16=True)"},
    {Framework::kHfTrainer, TorchWay::kSmallOptimizer, Lever::kOptimizer,
     "an optimizer with less state",
     "TrainingArguments(..., optim=\"adamw_bnb_8bit\")   # or \"adafactor\""},
    {Framework::kHfTrainer, TorchWay::kShard, Lever::kSharding,
     "sharding of parameters and optimizer over more devices",
     "TrainingArguments(..., fsdp=\"full_shard auto_wrap\")   # or deepspeed=\"ds_config.json\""},
    {Framework::kHfTrainer, TorchWay::kFlashAttention, Lever::kOther,
     "the traceback is in attention: a kernel that stores no scores, which grow with the square of "
     "the length",
     "from_pretrained(name, attn_implementation=\"sdpa\")"},
    {Framework::kHfTrainer, TorchWay::kChunkedLoss, Lever::kChunkedLoss,
     "the traceback is at the logits: a loss in chunks, as Liger's kernels compute it, never holds "
     "them (batch x length x vocabulary) as a whole",
     "TrainingArguments(..., use_liger_kernel=True)   # pip install liger-kernel"},
    {Framework::kHfTrainer, TorchWay::kOptimizerState, Lever::kOptimizer,
     "the traceback is in the optimizer: its state is made in the first step (Adam: two values for "
     "each parameter), so an optimizer with less state helps most",
     "TrainingArguments(..., optim=\"adamw_bnb_8bit\")   # or \"adafactor\""},
    {Framework::kHfTrainer, TorchWay::kOptimizerLater, Lever::kOptimizer,
     "the traceback is in the optimizer, and earlier steps were done: its state was there already, "
     "and an optimizer with less of it leaves more room for the rest",
     "TrainingArguments(..., optim=\"adamw_bnb_8bit\")   # or \"adafactor\""},
    {Framework::kHfTrainer, TorchWay::kNoForeach, Lever::kOther,
     "a fused optimizer: others handle all parameters at once and hold temporaries of their whole "
     "size",
     "TrainingArguments(..., optim=\"adamw_torch_fused\")"},
    {Framework::kHfTrainer, TorchWay::kOffloadOptimizer, Lever::kOffload,
     "the optimizer's state in the host's memory while it is not needed",
     "TrainingArguments(..., optim=\"paged_adamw_8bit\")", "speed"},
    {Framework::kHfTrainer, TorchWay::kShardOptimizer, Lever::kSharding,
     "the optimizer's state over more devices",
     "TrainingArguments(..., fsdp=\"shard_grad_op auto_wrap\")   # or "
     "deepspeed=\"ds_config.json\""},

    {Framework::kLightning, TorchWay::kAccumulate, Lever::kSmallerBatch,
     "a smaller batch in more accumulation steps: the optimizer sees as many samples as before",
     "Trainer(..., accumulate_grad_batches=4)   # with a quarter of batch_size in the DataLoader"},
    {Framework::kLightning, TorchWay::kAutocast, Lever::kMixedPrecision,
     "bf16 autocast: activations take half", "Trainer(..., precision=\"bf16-mixed\")"},
    {Framework::kLightning, TorchWay::kSmallOptimizer, Lever::kOptimizer,
     "an optimizer with less state (8-bit Adam, Adafactor)",
     "def configure_optimizers(self):\n"
     "    return bitsandbytes.optim.AdamW8bit(self.parameters(), lr=self.lr)"},
    {Framework::kLightning, TorchWay::kShard, Lever::kSharding,
     "sharding of parameters and optimizer over more devices",
     "Trainer(..., strategy=\"fsdp\")   # or \"deepspeed_stage_3\""},
    {Framework::kLightning, TorchWay::kOptimizerState, Lever::kOptimizer,
     "the traceback is in the optimizer: its state is made in the first step (Adam: two values for "
     "each parameter), so an optimizer with less state helps most",
     "def configure_optimizers(self):\n"
     "    return bitsandbytes.optim.AdamW8bit(self.parameters(), lr=self.lr)"},
    {Framework::kLightning, TorchWay::kOptimizerLater, Lever::kOptimizer,
     "the traceback is in the optimizer, and earlier steps were done: its state was there already, "
     "and an optimizer with less of it leaves more room for the rest",
     "def configure_optimizers(self):\n"
     "    return bitsandbytes.optim.AdamW8bit(self.parameters(), lr=self.lr)"},
    {Framework::kLightning, TorchWay::kNoForeach, Lever::kOther,
     "one parameter after the other: the default handles all at once and holds temporaries of "
     "their whole size",
     "def configure_optimizers(self):\n"
     "    return torch.optim.AdamW(self.parameters(), lr=self.lr, foreach=False)"},
    {Framework::kLightning, TorchWay::kNoAutograd, Lever::kEvaluation,
     "what the evaluation keeps of its batches, moved to the host; Lightning runs it without "
     "autograd already",
     "self.outputs.append(y.detach().cpu())   # in validation_step"},
    {Framework::kLightning, TorchWay::kOffloadOptimizer, Lever::kOffload,
     "the optimizer's state in the host's memory",
     "Trainer(..., strategy=\"deepspeed_stage_2_offload\")", "speed"},
    {Framework::kLightning, TorchWay::kShardOptimizer, Lever::kSharding,
     "the optimizer's state over more devices", "Trainer(..., strategy=\"deepspeed_stage_2\")"},

    {Framework::kDeepSpeed, TorchWay::kAccumulate, Lever::kSmallerBatch,
     "a smaller batch in more accumulation steps: the optimizer sees as many samples as before",
     "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 8   # in the "
     "DeepSpeed "
     "configuration"},
    {Framework::kDeepSpeed, TorchWay::kAutocast, Lever::kMixedPrecision,
     "bf16: weights, gradients and activations take half",
     "\"bf16\": {\"enabled\": true}   # in the DeepSpeed configuration"},
});

const WayRow* RowOf(TorchWay way, Framework framework) {
  for (const WayRow& row : kWayRows) {
    if (row.way == way && row.framework == framework) return &row;
  }
  return nullptr;
}

Remedy RemedyOf(const WayRow& row) {
  return Rule(std::string(row.change), row.lever, LinesOf(row.code), std::string(row.costs));
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

Remedy RemedyOf(TorchWay way, std::span<const Framework> frameworks) {
  for (Framework framework : frameworks) {
    if (const WayRow* row = RowOf(way, framework)) return RemedyOf(*row);
  }
  const WayRow* row = RowOf(way, Framework::kOwnLoop);
  return row == nullptr ? Remedy{} : RemedyOf(*row);
}

}  // namespace plimsoll
