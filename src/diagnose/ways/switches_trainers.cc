// Libraries around a script of the user's: transformers' Trainer, TRL, PEFT, unsloth, accelerate,
// Lightning.
#include <array>

#include "diagnose/ways/switches.h"

namespace plimsoll {
namespace {

constexpr std::string_view kAsManySamples =
    "a smaller batch in more accumulation steps: the optimizer sees as many samples as before";
constexpr std::string_view kLessState = "an optimizer with less state";
constexpr std::string_view kLigerLoss =
    "the traceback is at the logits: a loss in chunks, as Liger's kernels compute it, never holds "
    "them (batch x length x vocabulary) as a whole";

constexpr std::string_view kTrainingArguments = "src/transformers/training_args.py";
constexpr auto kHfTrainerSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "TrainingArguments(..., per_device_train_batch_size={batch}, "
     "gradient_accumulation_steps={steps})",
     kTrainingArguments, "", kAsManySamples},
    {TorchWay::kCheckpoint, "TrainingArguments(..., gradient_checkpointing=True)",
     kTrainingArguments},
    {TorchWay::kAutocast, "TrainingArguments(..., bf16=True)", kTrainingArguments},
    {TorchWay::kSmallOptimizer,
     "TrainingArguments(..., optim=\"adamw_bnb_8bit\")   # or \"adafactor\"", kTrainingArguments,
     "", kLessState},
    {TorchWay::kShard,
     "TrainingArguments(..., fsdp=\"full_shard auto_wrap\")   # or deepspeed=\"ds_config.json\"",
     kTrainingArguments, "", "sharding of parameters and optimizer over more devices"},
    {TorchWay::kFlashAttention, "from_pretrained(name, attn_implementation=\"sdpa\")",
     "src/transformers/modeling_utils.py", "4.36"},
    {TorchWay::kChunkedLoss,
     "TrainingArguments(..., use_liger_kernel=True)   # pip install liger-kernel",
     kTrainingArguments, "4.45", kLigerLoss, ""},
    {TorchWay::kNoForeach, "TrainingArguments(..., optim=\"adamw_torch_fused\")",
     kTrainingArguments, "",
     "a fused optimizer: others handle all parameters at once and hold temporaries of their whole "
     "size"},
    {TorchWay::kOffloadOptimizer, "TrainingArguments(..., optim=\"paged_adamw_8bit\")",
     kTrainingArguments, "4.30",
     "the optimizer's state in the host's memory while it is not needed"},
    {TorchWay::kShardOptimizer,
     "TrainingArguments(..., fsdp=\"shard_grad_op auto_wrap\")   # or "
     "deepspeed=\"ds_config.json\"",
     kTrainingArguments, "", "the optimizer's state over more devices"},
    {TorchWay::kEvalAccumulation, "TrainingArguments(..., eval_accumulation_steps=4)",
     kTrainingArguments},
    {TorchWay::kPreprocessLogits,
     "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))",
     "src/transformers/trainer.py"},
    {TorchWay::kLossOnly, "TrainingArguments(..., prediction_loss_only=True)", kTrainingArguments},
    {TorchWay::kEvalBatch, "TrainingArguments(..., per_device_eval_batch_size=1)",
     kTrainingArguments},
    {TorchWay::kFewerSequences,
     "Seq2SeqTrainingArguments(..., per_device_eval_batch_size=1, generation_max_length=128)",
     "src/transformers/training_args_seq2seq.py"},
});

constexpr std::string_view kSftConfig = "trl/trainer/sft_config.py";
constexpr std::string_view kGrpoConfig = "trl/trainer/grpo_config.py";
constexpr auto kTrlSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "SFTConfig(..., per_device_train_batch_size={batch}, gradient_accumulation_steps={steps})   "
     "# DPOConfig, GRPOConfig alike",
     "huggingface/transformers:src/transformers/training_args.py", "", kAsManySamples},
    {TorchWay::kCheckpoint, "SFTConfig(..., gradient_checkpointing=True)",
     "trl/trainer/base_config.py"},
    {TorchWay::kOffloadActivations, "SFTConfig(..., activation_offloading=True)", kSftConfig,
     "0.18"},
    {TorchWay::kAutocast, "SFTConfig(..., bf16=True)", "trl/trainer/base_config.py"},
    {TorchWay::kChunkedLoss,
     "SFTConfig(..., loss_type=\"chunked_nll\")   # older releases, DPO, GRPO: "
     "use_liger_kernel=True",
     kSftConfig, "1.4", "", ""},
    {TorchWay::kShorterSequences,
     "SFTConfig(..., max_length=1024)   # max_seq_length before 0.16; GRPOConfig: "
     "max_completion_length=512",
     kSftConfig, "0.16"},
    {TorchWay::kQuantized,
     "trl sft ... --load_in_4bit --use_peft   # ModelConfig(load_in_4bit=True, dtype=\"bfloat16\")",
     "trl/trainer/model_config.py", "", "weights in 4 bits with an adapter that is trained"},
    {TorchWay::kFewerSequences,
     "GRPOConfig(..., generation_batch_size=8, num_generations=4, max_completion_length=256)",
     kGrpoConfig, "0.18"},
    {TorchWay::kLogProbBatch,
     "GRPOConfig(..., per_device_train_batch_size=1, steps_per_generation=8)   # DPOConfig: "
     "precompute_ref_log_probs=True",
     kGrpoConfig, "0.18"},
    {TorchWay::kSmallOptimizer, "SFTConfig(..., optim=\"adamw_bnb_8bit\")   # or \"adafactor\"",
     "huggingface/transformers:src/transformers/training_args.py", "", kLessState},
    {TorchWay::kShard,
     "SFTConfig(..., fsdp=\"full_shard auto_wrap\")   # or deepspeed=\"ds_config.json\"",
     "huggingface/transformers:src/transformers/training_args.py", "",
     "sharding of parameters and optimizer over more devices"},
    {TorchWay::kEvalAccumulation, "SFTConfig(..., eval_accumulation_steps=4)",
     "huggingface/transformers:src/transformers/training_args.py"},
    {TorchWay::kEvalBatch, "SFTConfig(..., per_device_eval_batch_size=1)",
     "huggingface/transformers:src/transformers/training_args.py"},
    {TorchWay::kRolloutShare,
     "GRPOConfig(..., vllm_gpu_memory_utilization=0.2, vllm_enable_sleep_mode=True)", kGrpoConfig,
     "0.23"},
});

constexpr std::string_view kLoraConfig = "src/peft/tuners/lora/config.py";
constexpr auto kPeftSwitches = std::to_array<Switch>({
    {TorchWay::kCheckpoint,
     "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)",
     "src/peft/utils/other.py"},
    {TorchWay::kFewerTrained,
     "LoraConfig(..., r=8, modules_to_save=None)   # new tokens: trainable_token_indices=[...]",
     kLoraConfig, "trainable_token_indices: 0.15"},
    {TorchWay::kReadToHost,
     "model = PeftModel.from_pretrained(model, path, torch_device=\"cpu\", low_cpu_mem_usage=True)",
     "src/peft/peft_model.py", "low_cpu_mem_usage: 0.13",
     "the traceback is in loading: read the adapter to the host first"},
    {TorchWay::kMergeElsewhere,
     "model = AutoModelForCausalLM.from_pretrained(name, device_map=\"cpu\")\n"
     "model = PeftModel.from_pretrained(model, path).merge_and_unload(safe_merge=False)",
     "src/peft/tuners/tuners_utils.py", "",
     "the traceback is where an adapter is merged: merge it into a model in the host's memory",
     "time"},
    {TorchWay::kSaveOneByOne, "model.save_pretrained(path, save_embedding_layers=False)",
     "src/peft/peft_model.py", "0.7",
     "the traceback is in saving: the adapter alone, without the embeddings"},
    {TorchWay::kGatherOnHost, "model.save_pretrained(path, save_embedding_layers=False)",
     "src/peft/peft_model.py", "0.7",
     "the traceback is in saving: the adapter alone, without the embeddings"},
});

constexpr std::string_view kUnslothLoader = "unsloth/models/loader.py";
constexpr auto kUnslothSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "SFTConfig(..., per_device_train_batch_size={batch}, gradient_accumulation_steps={steps})",
     "unsloth/models/rl.py", "", kAsManySamples},
    {TorchWay::kSmallOptimizer, "SFTConfig(..., optim=\"adamw_8bit\")",
     "huggingface/transformers:src/transformers/training_args.py", "", kLessState},
    {TorchWay::kEvalBatch,
     "SFTConfig(..., per_device_eval_batch_size=1, eval_accumulation_steps=4)",
     "huggingface/transformers:src/transformers/training_args.py"},
    {TorchWay::kCheckpoint,
     "FastLanguageModel.get_peft_model(..., use_gradient_checkpointing=\"unsloth\")",
     "unsloth/models/llama.py", "", "checkpointed activations, their inputs in the host's memory"},
    {TorchWay::kShorterSequences,
     "FastLanguageModel.from_pretrained(..., max_seq_length=1024)   # and SFTConfig(..., "
     "max_length=1024)",
     kUnslothLoader},
    {TorchWay::kQuantized,
     "FastLanguageModel.from_pretrained(..., load_in_4bit=True, offload_embedding=True)",
     kUnslothLoader, "", "weights in 4 bits, embeddings in the host's memory"},
    {TorchWay::kReadToHost,
     "FastLanguageModel.from_pretrained(..., load_in_4bit=True, offload_embedding=True)",
     kUnslothLoader, "",
     "the traceback is in loading: weights in 4 bits, embeddings in the host's memory"},
    {TorchWay::kChunkedLoss,
     "GRPOConfig(..., unsloth_num_chunks=8)   # -1 is for speed; SFT: its fused loss is in chunks "
     "unless UNSLOTH_RETURN_LOGITS=1",
     "unsloth/models/rl.py", "", "", ""},
    {TorchWay::kLogProbBatch, "GRPOConfig(..., unsloth_num_chunks=8)", "unsloth/models/rl.py"},
    {TorchWay::kRolloutShare,
     "FastLanguageModel.from_pretrained(..., fast_inference=True, gpu_memory_utilization=0.3)",
     kUnslothLoader},
    {TorchWay::kFewerSequences,
     "FastLanguageModel.from_pretrained(..., fast_inference=True, float8_kv_cache=True)",
     kUnslothLoader, "", "a KV cache in 8 bits, and fewer sequences at once"},
    {TorchWay::kSaveOneByOne,
     "model.save_pretrained_merged(path, tokenizer, save_method=\"merged_16bit\", "
     "maximum_memory_usage=0.5)   # or save_method=\"lora\"",
     "unsloth/save.py", "",
     "the traceback is in saving: less of the device for the merged weights, or the adapter alone"},
});

constexpr std::string_view kLaunch = "src/accelerate/commands/launch.py";
constexpr auto kAccelerateSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "accelerator = Accelerator(gradient_accumulation_steps={steps})   # a DataLoader with "
     "batch_size={batch}\n"
     "with accelerator.accumulate(model): ...   # or @find_executable_batch_size around the loop",
     "src/accelerate/accelerator.py", "", kAsManySamples},
    {TorchWay::kCheckpoint,
     "model.gradient_checkpointing_enable()   # with FSDP: accelerate launch "
     "--fsdp_activation_checkpointing true ...",
     kLaunch},
    {TorchWay::kAutocast, "accelerate launch --mixed_precision bf16 ...", kLaunch},
    {TorchWay::kShard,
     "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true ...", kLaunch,
     "1.6"},
    {TorchWay::kOffloadOptimizer,
     "accelerate launch --use_fsdp --fsdp_offload_params true ...   # DeepSpeed: "
     "--offload_optimizer_device cpu",
     kLaunch},
    {TorchWay::kSmallOptimizer,
     "optimizer = accelerator.prepare(bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr))",
     "src/accelerate/accelerator.py"},
    {TorchWay::kZeroOffloadOptimizer,
     "accelerate launch --use_deepspeed --offload_optimizer_device cpu ...", kLaunch},
    {TorchWay::kZeroStage2, "accelerate launch --use_deepspeed --zero_stage 2 ...", kLaunch},
    {TorchWay::kZeroStage3, "accelerate launch --use_deepspeed --zero_stage 3 ...", kLaunch},
    {TorchWay::kNoAutograd,
     "with torch.inference_mode(): logits = model(**batch).logits\n"
     "preds, refs = accelerator.gather_for_metrics((logits.argmax(-1), batch[\"labels\"]))   # not "
     "the logits",
     "src/accelerate/accelerator.py", "",
     "no autograd where nothing is trained, and of each batch what the metric needs instead of "
     "the logits"},
    {TorchWay::kReadToHost,
     "accelerate launch --use_fsdp --fsdp_cpu_ram_efficient_loading true --fsdp_sync_module_states "
     "true ...",
     kLaunch, "",
     "the traceback is in loading: one rank reads the weights to the host, the others get their "
     "part"},
    {TorchWay::kLayersOnHost,
     "model = load_checkpoint_and_dispatch(model, path, device_map=\"auto\")",
     "src/accelerate/big_modeling.py"},
    {TorchWay::kSaveShards,
     "accelerate launch --use_fsdp --fsdp_state_dict_type SHARDED_STATE_DICT ...", kLaunch},
    {TorchWay::kGatherOnHost,
     "accelerate launch --use_fsdp --fsdp_state_dict_type SHARDED_STATE_DICT ...", kLaunch, "",
     "the traceback is in saving: each rank saves its own part, and nothing is gathered"},
    {TorchWay::kSaveOneByOne, "accelerator.save_model(model, path, max_shard_size=\"2GB\")",
     "src/accelerate/accelerator.py"},
});

constexpr std::string_view kLightningTrainer = "src/lightning/pytorch/trainer/trainer.py";
constexpr std::string_view kEightBitAdam =
    "def configure_optimizers(self):\n"
    "    return bitsandbytes.optim.AdamW8bit(self.parameters(), lr=self.lr)";
constexpr auto kLightningSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "Trainer(..., accumulate_grad_batches=4)   # with a quarter of batch_size in the DataLoader",
     kLightningTrainer, "", kAsManySamples},
    {TorchWay::kCheckpoint,
     "from torch.utils.checkpoint import checkpoint\n"
     "x = checkpoint(block, x, use_reentrant=False)   # with FSDP: "
     "FSDPStrategy(activation_checkpointing_policy={Block})",
     "src/lightning/pytorch/strategies/fsdp.py", "2.1"},
    {TorchWay::kAutocast, "Trainer(..., precision=\"bf16-mixed\")",
     "src/lightning/pytorch/plugins/precision/amp.py", "2.0"},
    {TorchWay::kSmallOptimizer, kEightBitAdam, "src/lightning/pytorch/core/module.py"},
    {TorchWay::kShard, "Trainer(..., strategy=\"fsdp\")   # or \"deepspeed_stage_3\"",
     "src/lightning/pytorch/strategies/fsdp.py", "",
     "sharding of parameters and optimizer over more devices"},
    {TorchWay::kNoForeach,
     "def configure_optimizers(self):\n"
     "    return torch.optim.AdamW(self.parameters(), lr=self.lr, foreach=False)",
     "src/lightning/pytorch/core/module.py"},
    {TorchWay::kNoAutograd, "self.outputs.append(y.detach().cpu())   # in validation_step",
     "src/lightning/pytorch/core/module.py", "",
     "what the evaluation keeps of its batches, moved to the host; Lightning runs it without "
     "autograd already"},
    {TorchWay::kEvalBatch,
     "def val_dataloader(self): return DataLoader(self.val, batch_size=1)   # "
     "Trainer(..., limit_val_batches=0) to go on without",
     kLightningTrainer},
    {TorchWay::kOffloadOptimizer, "Trainer(..., strategy=\"deepspeed_stage_2_offload\")",
     "src/lightning/pytorch/strategies/deepspeed.py"},
    {TorchWay::kShardOptimizer, "Trainer(..., strategy=\"deepspeed_stage_2\")",
     "src/lightning/pytorch/strategies/deepspeed.py", "",
     "the optimizer's state over more devices"},
    {TorchWay::kLightWeights, "Trainer(..., precision=\"bf16-true\")",
     "src/lightning/fabric/plugins/precision/precision.py", "2.0",
     "the traceback is where the model goes to its device, before any batch: weights in bf16 take "
     "half of fp32"},
    {TorchWay::kReadToHost, "model = Model.load_from_checkpoint(path, map_location=\"cpu\")",
     "src/lightning/pytorch/core/module.py"},
    {TorchWay::kGatherOnHost, "Trainer(..., strategy=FSDPStrategy(state_dict_type=\"sharded\"))",
     "src/lightning/pytorch/strategies/fsdp.py", "2.1",
     "the traceback is in saving: each rank saves its own part, and nothing is gathered"},
    {TorchWay::kSaveOneByOne, "ModelCheckpoint(..., save_weights_only=True)",
     "src/lightning/pytorch/callbacks/model_checkpoint.py", "",
     "the traceback is in saving: the weights without the optimizer's state"},
});

}  // namespace

std::span<const Switch> SwitchesOfTrainers(Framework framework) {
  switch (framework) {
    case Framework::kHfTrainer:
      return kHfTrainerSwitches;
    case Framework::kTrl:
      return kTrlSwitches;
    case Framework::kPeft:
      return kPeftSwitches;
    case Framework::kUnsloth:
      return kUnslothSwitches;
    case Framework::kAccelerate:
      return kAccelerateSwitches;
    case Framework::kLightning:
      return kLightningSwitches;
    default:
      return {};
  }
}

}  // namespace plimsoll
