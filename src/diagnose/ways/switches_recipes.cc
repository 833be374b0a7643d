// Frameworks that are told what to do by a configuration: axolotl, LLaMA-Factory, torchtune,
// torchtitan, Megatron-LM, verl.
#include <array>

#include "diagnose/ways/switches.h"

namespace plimsoll {
namespace {

constexpr std::string_view kSamplesStay =
    "a smaller batch in more accumulation steps: the optimizer sees as many samples as before";
constexpr std::string_view kLogitsInChunks =
    "the traceback is at the logits: a loss in chunks never holds them (batch x length x "
    "vocabulary) as a whole";
constexpr std::string_view kPartsSaved =
    "the traceback is in saving: each rank saves its own part, and nothing is gathered";
constexpr std::string_view kFewerBits =
    "the traceback is in loading: weights in fewer bits, with an adapter that is trained";

constexpr std::string_view kAxolotlConfig = "src/axolotl/utils/schemas/config.py";
constexpr std::string_view kAxolotlTraining = "src/axolotl/utils/schemas/training.py";
constexpr std::string_view kAxolotlFsdp = "src/axolotl/utils/schemas/fsdp.py";
constexpr auto kAxolotlSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate, "micro_batch_size: {batch}\ngradient_accumulation_steps: {steps}",
     kAxolotlTraining, "", kSamplesStay},
    {TorchWay::kCheckpoint, "gradient_checkpointing: true   # or offload: their inputs on the host",
     kAxolotlConfig},
    {TorchWay::kOffloadActivations, "activation_offloading: true", kAxolotlConfig},
    {TorchWay::kAutocast, "bf16: auto", kAxolotlConfig},
    {TorchWay::kSmallOptimizer, "optimizer: adamw_bnb_8bit   # or paged_adamw_8bit, adafactor",
     kAxolotlTraining},
    {TorchWay::kShard,
     "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true   # or deepspeed: "
     "deepspeed_configs/zero3_bf16.json",
     kAxolotlFsdp},
    {TorchWay::kOffloadOptimizer,
     "fsdp_config:\n  offload_params: true   # or optimizer: "
     "paged_adamw_8bit",
     kAxolotlFsdp},
    {TorchWay::kFlashAttention,
     "attn_implementation: flash_attention_2   # older: flash_attention: true", kAxolotlConfig},
    {TorchWay::kChunkedLoss,
     "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
     "cut_cross_entropy: true   # or chunked_cross_entropy: true, without a plugin",
     "src/axolotl/integrations/cut_cross_entropy/args.py", "chunked_cross_entropy: 0.11",
     kLogitsInChunks, ""},
    {TorchWay::kShorterSequences, "sequence_len: 2048   # or context_parallel_size: 2",
     kAxolotlConfig},
    {TorchWay::kEvalBatch, "eval_batch_size: 1   # and eval_sample_packing: false",
     kAxolotlTraining},
    {TorchWay::kQuantized,
     "load_in_4bit: true\nadapter: qlora   # a mixture of experts: quantize_moe_experts: true",
     "src/axolotl/utils/schemas/peft.py", "quantize_moe_experts: 0.15",
     "weights in 4 bits with an adapter that is trained"},
    {TorchWay::kReadToHost,
     "load_in_4bit: true\nadapter: qlora   # a mixture of experts: quantize_moe_experts: true",
     "src/axolotl/utils/schemas/peft.py", "quantize_moe_experts: 0.15", kFewerBits},
    {TorchWay::kMergeElsewhere, "axolotl merge-lora config.yml --lora-on-cpu   # lora_on_cpu: true",
     "src/axolotl/utils/schemas/peft.py", "", "", "time"},
    {TorchWay::kGatherOnHost, "fsdp_config:\n  state_dict_type: SHARDED_STATE_DICT", kAxolotlFsdp,
     "", kPartsSaved},
    {TorchWay::kSaveShards, "fsdp_config:\n  state_dict_type: SHARDED_STATE_DICT", kAxolotlFsdp},
    {TorchWay::kSaveOneByOne, "save_only_model: true", kAxolotlConfig, "",
     "the traceback is in saving: the model without the optimizer's state"},
});

constexpr std::string_view kFactoryModel = "src/llamafactory/hparams/model_args.py";
constexpr std::string_view kFactoryData = "src/llamafactory/hparams/data_args.py";
constexpr std::string_view kOfTrainingArguments =
    "huggingface/transformers:src/transformers/training_args.py";
constexpr auto kLlamaFactorySwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "per_device_train_batch_size: {batch}\ngradient_accumulation_steps: {steps}",
     kOfTrainingArguments, "", kSamplesStay},
    {TorchWay::kCheckpoint,
     "disable_gradient_checkpointing: false   # use_unsloth_gc: true keeps their inputs on the "
     "host",
     kFactoryModel},
    {TorchWay::kAutocast, "bf16: true", kOfTrainingArguments},
    {TorchWay::kSmallOptimizer, "optim: adamw_8bit   # or use_galore, use_apollo, use_badam: true",
     kOfTrainingArguments},
    {TorchWay::kShard, "deepspeed: examples/deepspeed/ds_z3_config.json", kOfTrainingArguments},
    {TorchWay::kOffloadOptimizer, "deepspeed: examples/deepspeed/ds_z3_offload_config.json",
     kOfTrainingArguments},
    {TorchWay::kFlashAttention, "flash_attn: fa2   # or sdpa", kFactoryModel},
    {TorchWay::kChunkedLoss, "enable_liger_kernel: true", kFactoryModel, "", kLogitsInChunks, ""},
    {TorchWay::kShorterSequences, "cutoff_len: 2048", kFactoryData},
    {TorchWay::kEvalBatch, "per_device_eval_batch_size: 1", kOfTrainingArguments},
    {TorchWay::kEvalAccumulation, "eval_accumulation_steps: 4", kOfTrainingArguments},
    {TorchWay::kFewerSequences, "per_device_eval_batch_size: 1\nmax_new_tokens: 256",
     "src/llamafactory/hparams/generating_args.py"},
    {TorchWay::kQuantized, "quantization_bit: 4\nfinetuning_type: lora", kFactoryModel, "",
     "weights in 4 bits with an adapter that is trained"},
    {TorchWay::kReadToHost, "quantization_bit: 4\nfinetuning_type: lora", kFactoryModel, "",
     kFewerBits},
    {TorchWay::kMergeElsewhere, "export_device: cpu   # of llamafactory-cli export", kFactoryModel,
     "", "", "time"},
    {TorchWay::kSaveOneByOne, "save_only_model: true", kOfTrainingArguments, "transformers 4.36",
     "the traceback is in saving: the model without the optimizer's state"},
    {TorchWay::kGatherOnHost, "save_only_model: true", kOfTrainingArguments, "transformers 4.36",
     "the traceback is in saving: the model without the optimizer's state"},
});

constexpr std::string_view kTuneFull = "recipes/configs/llama3_1/8B_full.yaml";
constexpr auto kTorchtuneSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate, "batch_size={batch} gradient_accumulation_steps={steps}", kTuneFull, "",
     kSamplesStay},
    {TorchWay::kCheckpoint, "enable_activation_checkpointing=True", kTuneFull},
    {TorchWay::kOffloadActivations,
     "enable_activation_offloading=True   # with enable_activation_checkpointing=True", kTuneFull},
    {TorchWay::kAutocast, "dtype=bf16", kTuneFull, "",
     "bf16: weights, gradients and activations take half"},
    {TorchWay::kSmallOptimizer,
     "optimizer=bitsandbytes.optim.PagedAdamW8bit   # one device: optimizer_in_bwd=True too",
     "recipes/configs/llama3_1/8B_full_single_device.yaml"},
    {TorchWay::kShard, "tune run --nproc_per_node 2 full_finetune_distributed ...",
     "recipes/full_finetune_distributed.py"},
    {TorchWay::kOffloadOptimizer, "fsdp_cpu_offload=True",
     "recipes/configs/llama3_1/70B_full.yaml"},
    {TorchWay::kChunkedLoss,
     "loss=torchtune.modules.loss.LinearCrossEntropyLoss   # older: CEWithChunkedOutputLoss",
     kTuneFull, "after 0.6", kLogitsInChunks, ""},
    {TorchWay::kShorterSequences, "tokenizer.max_seq_len=2048", kTuneFull},
    {TorchWay::kEvalBatch, "batch_size_val=1", kTuneFull, "after 0.6"},
    {TorchWay::kFewerSequences, "forward_batch_size=1 max_generated_tokens=256",
     "recipes/configs/dev/3B_full_grpo.yaml"},
    {TorchWay::kQuantized,
     "model=torchtune.models.llama3_1.qlora_llama3_1_8b   # with a LoRA recipe",
     "recipes/configs/llama3_1/8B_qlora_single_device.yaml", "",
     "weights in 4 bits with an adapter that is trained"},
    {TorchWay::kReadToHost,
     "model=torchtune.models.llama3_1.qlora_llama3_1_8b   # with a LoRA recipe",
     "recipes/configs/llama3_1/8B_qlora_single_device.yaml", "", kFewerBits},
    {TorchWay::kSmallerUnits, "custom_sharded_layers=['tok_embeddings','output']", kTuneFull, "",
     "the traceback is where sharded parameters are put together: the large embeddings as units of "
     "their own"},
    {TorchWay::kGatherOnHost, "enable_async_checkpointing=True",
     "recipes/full_finetune_distributed.py", "0.6", kPartsSaved},
    {TorchWay::kSaveOneByOne, "save_adapter_weights_only=True   # of a LoRA recipe",
     "recipes/configs/llama3_1/8B_lora.yaml", "",
     "the traceback is in saving: the adapter without the model"},
});

constexpr std::string_view kTitanConfig = "torchtitan/config/configs.py";
constexpr auto kTorchtitanSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "--training.num_tokens_per_microbatch_per_dp_rank 8192   # before August 2026: "
     "--training.local_batch_size {batch}, with --training.global_batch_size as it is",
     kTitanConfig, "August 2026", kSamplesStay},
    {TorchWay::kCheckpoint,
     "activation_checkpoint=FullAC.Config()   # before June 2026: --activation_checkpoint.mode "
     "full",
     "torchtitan/distributed/activation_checkpoint.py", "June 2026"},
    {TorchWay::kAutocast, "--training.mixed_precision_param bfloat16", kTitanConfig},
    {TorchWay::kSmallOptimizer, "--training.dtype bfloat16", kTitanConfig, "",
     "weights, gradients and the optimizer's state in bf16", "other rounding of the updates"},
    {TorchWay::kShard, "--parallelism.data_parallel_shard_degree -1   # over all GPUs",
     kTitanConfig},
    {TorchWay::kOffloadOptimizer, "--training.enable_cpu_offload", kTitanConfig},
    {TorchWay::kChunkedLoss,
     "loss=ChunkedLossWrapper.Config(num_chunks=8, ...)   # in the config registry; older: "
     "--parallelism.tensor_parallel_degree 2 divides the vocabulary",
     "torchtitan/components/loss.py", "main of 2026", kLogitsInChunks, ""},
    {TorchWay::kShorterSequences,
     "--training.max_context_length 2048   # before August 2026: --training.seq_len; or "
     "--parallelism.context_parallel_degree 2",
     kTitanConfig, "August 2026"},
    {TorchWay::kEvalBatch,
     "--training.num_tokens_per_microbatch_per_dp_rank 8192   # for both; before August 2026 "
     "--validation.local_batch_size 1",
     kTitanConfig, "August 2026", "a smaller batch, which the validation shares"},
    {TorchWay::kLightWeights, "--training.dtype bfloat16", kTitanConfig},
    {TorchWay::kReadToHost,
     "--checkpoint.initial_load_model_only   # and --training.dtype bfloat16",
     "torchtitan/components/checkpointer/base.py", "",
     "the traceback is in loading: the weights without the optimizer's state"},
    {TorchWay::kSmallerUnits, "--parallelism.fsdp_reshard_after_forward always", kTitanConfig},
    {TorchWay::kGatherOnHost,
     "--checkpoint.async_mode async   # the last one: --checkpoint.export_dtype bfloat16",
     "torchtitan/components/checkpointer/dcp.py", "",
     "the traceback is in saving: through a copy in the host's memory, each rank its own part"},
    {TorchWay::kSaveOneByOne,
     "--checkpoint.async_mode async   # the last one: --checkpoint.export_dtype bfloat16",
     "torchtitan/components/checkpointer/dcp.py", "",
     "the traceback is in saving: through a copy in the host's memory"},
});

constexpr std::string_view kMegatronArguments = "megatron/training/arguments.py";
constexpr std::string_view kMegatronTraining = "megatron/training/config/training_config.py";
constexpr auto kMegatronSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate, "--micro-batch-size {batch}   # --global-batch-size stays",
     kMegatronTraining, "", kSamplesStay},
    {TorchWay::kCheckpoint,
     "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1   # or "
     "selective",
     "megatron/core/transformer/transformer_config.py"},
    {TorchWay::kOffloadActivations,
     "--fine-grained-activation-offloading --offload-modules core_attn attn_proj",
     "docs/user-guide/features/fine_grained_activation_offloading.md", "main of 2026"},
    {TorchWay::kAutocast, "--bf16", "docs/user-guide/training-examples.md", "",
     "bf16: weights, gradients and activations take half"},
    {TorchWay::kSmallOptimizer,
     "--use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16 "
     "--exp-avg-sq-dtype bf16",
     kMegatronArguments, "", "the optimizer's state over the data-parallel ranks, and in 16 bits"},
    {TorchWay::kOptimizerState,
     "--use-distributed-optimizer   # and --use-precision-aware-optimizer --exp-avg-dtype bf16 "
     "--exp-avg-sq-dtype bf16",
     kMegatronArguments, "",
     "the traceback is in the optimizer: its state is made in the first step (Adam: two values for "
     "each parameter); spread it over the data-parallel ranks, or keep it in 16 bits"},
    {TorchWay::kOffloadOptimizer, "--optimizer-cpu-offload --optimizer-offload-fraction 1.0",
     kMegatronArguments},
    {TorchWay::kShard, "--tensor-model-parallel-size 2 --sequence-parallel",
     "megatron/core/model_parallel_config.py", "", "the weights over more GPUs of one machine"},
    {TorchWay::kShardOptimizer, "--tensor-model-parallel-size 2 --sequence-parallel",
     "megatron/core/model_parallel_config.py", "",
     "weights, gradients and the optimizer's state over more GPUs of one machine"},
    {TorchWay::kChunkedLoss,
     "--cross-entropy-loss-fusion   # and --tensor-model-parallel-size 2, which divides the "
     "vocabulary",
     "megatron/core/model_parallel_config.py", "",
     "the traceback is at the logits: a fused loss makes no copies of them, tensor parallelism "
     "divides them",
     ""},
    {TorchWay::kFlashAttention, "--attention-backend flash   # older: --use-flash-attn",
     "megatron/core/transformer/transformer_config.py"},
    {TorchWay::kShorterSequences, "--seq-length 2048   # or --context-parallel-size 2",
     kMegatronArguments},
    {TorchWay::kEvalBatch,
     "--eval-micro-batch-size 1   # older: --micro-batch-size, which the evaluation shares",
     kMegatronTraining, "main of 2026"},
    {TorchWay::kLightWeights, "--tensor-model-parallel-size 2   # and --bf16",
     "megatron/core/model_parallel_config.py", "",
     "the traceback is where the model is built: its weights over more GPUs, in bf16"},
    {TorchWay::kReadToHost, "--no-load-optim   # where only the weights are wanted",
     kMegatronArguments, "",
     "the traceback is in loading: the weights without the optimizer's state"},
    {TorchWay::kGatherOnHost, "--ckpt-format torch_dist --async-save", kMegatronTraining, "",
     kPartsSaved},
    {TorchWay::kSaveOneByOne, "--ckpt-format torch_dist --async-save", kMegatronTraining, "",
     kPartsSaved},
});

constexpr std::string_view kVerlConfig = "verl/trainer/config/_generated_ppo_trainer.yaml";
constexpr auto kVerlSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={batch}   # ppo_mini_batch_size stays; "
     "or use_dynamic_bsz=True with a smaller ppo_max_token_len_per_gpu",
     kVerlConfig, "", "a smaller batch in one pass: the optimizer sees as many samples as before"},
    {TorchWay::kCheckpoint, "actor_rollout_ref.model.enable_gradient_checkpointing=True",
     kVerlConfig},
    {TorchWay::kOffloadActivations, "actor_rollout_ref.model.enable_activation_offload=True",
     kVerlConfig},
    {TorchWay::kSmallOptimizer, "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
     kVerlConfig, "", "the optimizer's state in the host's memory while it is not needed", "speed"},
    {TorchWay::kOptimizerState, "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
     kVerlConfig, "",
     "the traceback is in the optimizer: its state is made in the first step (Adam: two values for "
     "each parameter); keep it in the host's memory while it is not needed",
     "speed"},
    {TorchWay::kOffloadOptimizer,
     "actor_rollout_ref.actor.fsdp_config.param_offload=True "
     "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
     kVerlConfig, "", "weights and the optimizer's state in the host's memory while they wait"},
    {TorchWay::kChunkedLoss,
     "actor_rollout_ref.model.use_fused_kernels=True   # the entropy: "
     "actor_rollout_ref.actor.entropy_from_logits_with_chunking=True",
     kVerlConfig, "", kLogitsInChunks, ""},
    {TorchWay::kLogProbBatch,
     "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 "
     "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1",
     kVerlConfig},
    {TorchWay::kShorterSequences,
     "data.max_response_length=1024   # or "
     "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
     kVerlConfig},
    {TorchWay::kRolloutShare, "actor_rollout_ref.rollout.gpu_memory_utilization=0.4", kVerlConfig},
    {TorchWay::kFewerSequences,
     "actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.rollout.max_num_seqs="
     "128",
     kVerlConfig, "", "less for the engine's KV cache, fewer sequences at once"},
    {TorchWay::kEvalBatch,
     "data.val_batch_size=64   # and actor_rollout_ref.rollout.max_num_seqs="
     "128",
     kVerlConfig},
    {TorchWay::kShard, "actor_rollout_ref.actor.fsdp_config.fsdp_size=-1   # over all GPUs",
     kVerlConfig},
    {TorchWay::kSmallerUnits, "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=True",
     kVerlConfig},
    {TorchWay::kLightWeights,
     "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16   # and param_offload=True",
     kVerlConfig},
    {TorchWay::kReadToHost,
     "actor_rollout_ref.actor.fsdp_config.param_offload=True "
     "actor_rollout_ref.ref.fsdp_config.param_offload=True",
     kVerlConfig, "",
     "the traceback is in loading: weights in the host's memory until they are used", "speed"},
    {TorchWay::kGatherOnHost,
     "actor_rollout_ref.actor.checkpoint.save_contents=['model','optimizer','extra']   # without "
     "'hf_model', which gathers the weights",
     kVerlConfig, "", kPartsSaved},
    {TorchWay::kSaveOneByOne,
     "actor_rollout_ref.actor.checkpoint.save_contents=['model','optimizer','extra']   # without "
     "'hf_model', which gathers the weights",
     kVerlConfig, "", kPartsSaved},
    {TorchWay::kServerWake,
     "actor_rollout_ref.rollout.multi_stage_wake_up=True   # and a lower "
     "actor_rollout_ref.rollout.gpu_memory_utilization",
     kVerlConfig, "0.5"},
});

}  // namespace

std::span<const Switch> SwitchesOfRecipes(Framework framework) {
  switch (framework) {
    case Framework::kAxolotl:
      return kAxolotlSwitches;
    case Framework::kLlamaFactory:
      return kLlamaFactorySwitches;
    case Framework::kTorchtune:
      return kTorchtuneSwitches;
    case Framework::kTorchtitan:
      return kTorchtitanSwitches;
    case Framework::kMegatron:
      return kMegatronSwitches;
    case Framework::kVerl:
      return kVerlSwitches;
    default:
      return {};
  }
}

}  // namespace plimsoll
