// Engines beneath a loop or a server: DeepSpeed, vLLM, diffusers' models and pipelines.
#include <array>

#include "diagnose/ways/switches.h"

namespace plimsoll {
namespace {

constexpr std::string_view kZeroConfig = "deepspeed/runtime/zero/config.py";
constexpr std::string_view kDeepSpeedDocs = "docs/_pages/config-json.md";
constexpr auto kDeepSpeedSwitches = std::to_array<Switch>({
    {TorchWay::kAccumulate,
     "\"train_micro_batch_size_per_gpu\": {batch}, \"gradient_accumulation_steps\": {steps}   # in "
     "the DeepSpeed configuration",
     kDeepSpeedDocs, "",
     "a smaller batch in more accumulation steps: the optimizer sees as many samples as before"},
    {TorchWay::kAutocast, "\"bf16\": {\"enabled\": true}   # in the DeepSpeed configuration",
     kDeepSpeedDocs, "", "bf16: weights, gradients and activations take half"},
    {TorchWay::kOffloadActivations,
     "\"activation_checkpointing\": {\"partition_activations\": true, \"cpu_checkpointing\": true} "
     "  "
     "# of deepspeed.checkpointing.checkpoint()",
     "deepspeed/runtime/activation_checkpointing/config.py"},
    {TorchWay::kFewerLive,
     "\"stage3_max_live_parameters\": 1e8, \"stage3_prefetch_bucket_size\": 1e7", kDeepSpeedDocs},
    {TorchWay::kZeroStage2,
     "\"zero_optimization\": {\"stage\": 2}   # in the DeepSpeed configuration", kZeroConfig},
    {TorchWay::kZeroStage3,
     "\"zero_optimization\": {\"stage\": 3}   # in the DeepSpeed configuration", kZeroConfig},
    {TorchWay::kZeroOffloadOptimizer,
     "\"zero_optimization\": {..., \"offload_optimizer\": {\"device\": \"cpu\"}}   # in the "
     "DeepSpeed configuration",
     kZeroConfig},
    {TorchWay::kZeroOffloadParameters,
     "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}",
     kZeroConfig},
    {TorchWay::kZeroBuckets,
     "\"reduce_bucket_size\": 5e7, \"allgather_bucket_size\": 5e7, \"contiguous_gradients\": true",
     kZeroConfig},
    {TorchWay::kChunkedLoss,
     "loss = TiledFusedLogitsLoss.apply(fn, self, hidden, labels, mask, 8, [self.lm_head.weight], "
     "\"mean\")   # deepspeed.runtime.sequence_parallel.ulysses_sp",
     "deepspeed/runtime/sequence_parallel/ulysses_sp.py", "0.18"},
    {TorchWay::kLightWeights,
     "with deepspeed.zero.Init(config_dict_or_path=ds_config): model = Model(config)   # stage 3",
     "deepspeed/runtime/zero/partition_parameters.py", "",
     "the traceback is where the model goes to its device, before any batch: parameters that are "
     "divided as they are made"},
    {TorchWay::kReadToHost, "engine.load_checkpoint(path, load_module_only=True)",
     "deepspeed/runtime/engine.py", "",
     "the traceback is in loading: the weights without the optimizer's state, where that is "
     "enough"},
    {TorchWay::kGatherOnHost,
     "\"stage3_gather_16bit_weights_on_model_save\": false   # then zero_to_fp32.py makes the file",
     kDeepSpeedDocs, "",
     "the traceback is in saving: each rank saves its own part, and nothing is gathered"},
    {TorchWay::kSaveShards, "engine.save_checkpoint(path)   # and no save_16bit_model()",
     "deepspeed/runtime/engine.py"},
});

constexpr std::string_view kVllmArguments = "vllm/engine/arg_utils.py";
constexpr auto kVllmSwitches = std::to_array<Switch>({
    {TorchWay::kServerRoom,
     "vllm serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 64 --max-model-len 8192",
     kVllmArguments},
    {TorchWay::kServerQuantized,
     "vllm serve MODEL --kv-cache-dtype fp8   # a model in 4 bits, or "
     "--quantization fp8",
     kVllmArguments},
    {TorchWay::kServerParallel, "vllm serve MODEL --tensor-parallel-size 2", kVllmArguments},
    {TorchWay::kServerEager, "vllm serve MODEL --enforce-eager", kVllmArguments},
    {TorchWay::kServerSequences, "vllm serve MODEL --max-num-seqs 64", kVllmArguments},
    {TorchWay::kServerTokens,
     "vllm serve MODEL --max-num-batched-tokens 2048   # pictures: --limit-mm-per-prompt "
     "'{\"image\": 1}'",
     kVllmArguments},
    {TorchWay::kServerShare, "vllm serve MODEL --gpu-memory-utilization 0.8", kVllmArguments},
    {TorchWay::kServerGraphs,
     "vllm serve MODEL --max-cudagraph-capture-size 64   # or --enforce-eager", kVllmArguments},
    {TorchWay::kServerWake,
     "llm.wake_up(tags=[\"weights\"])\n"
     "llm.wake_up(tags=[\"kv_cache\"])   # after torch.cuda.empty_cache() in the other process",
     "docs/features/sleep_mode.md", "0.9"},
});

constexpr std::string_view kPipelines = "src/diffusers/pipelines/pipeline_utils.py";
constexpr std::string_view kDreamBooth = "examples/dreambooth/train_dreambooth_lora_sdxl.py";
constexpr auto kDiffusersSwitches = std::to_array<Switch>({
    {TorchWay::kPipelineOffload, "pipe.enable_model_cpu_offload()   # instead of pipe.to(\"cuda\")",
     kPipelines},
    {TorchWay::kPipelineSmaller, "pipe.vae.enable_tiling()",
     "src/diffusers/models/autoencoders/vae.py"},
    {TorchWay::kPipelineQuantized,
     "pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=torch.bfloat16, "
     "quantization_config=PipelineQuantizationConfig(...))",
     "docs/source/en/quantization/overview.md", "0.34"},
    {TorchWay::kVaeTiles,
     "pipe.vae.enable_tiling()   # several pictures: "
     "pipe.vae.enable_slicing()",
     "src/diffusers/models/autoencoders/vae.py"},
    {TorchWay::kPromptsApart,
     "pipe.enable_model_cpu_offload()   # training: --pre_compute_text_embeddings, or --offload",
     kPipelines},
    {TorchWay::kLatentsKept, "--cache_latents",
     "examples/dreambooth/train_dreambooth_lora_flux.py"},
    {TorchWay::kAttentionInParts,
     "pipe.enable_attention_slicing()   # newer models: pipe.transformer.set_attention_backend("
     "\"flash\")",
     kPipelines},
    {TorchWay::kFlashAttention,
     "--enable_xformers_memory_efficient_attention   # a pipeline: pipe.enable_attention_slicing()",
     kDreamBooth},
    {TorchWay::kAccumulate, "--train_batch_size {batch} --gradient_accumulation_steps {steps}",
     kDreamBooth, "",
     "a smaller batch in more accumulation steps: the optimizer sees as many samples as before"},
    {TorchWay::kCheckpoint,
     "--gradient_checkpointing   # in a script of one's own: model.enable_gradient_checkpointing()",
     kDreamBooth},
    {TorchWay::kAutocast, "--mixed_precision bf16", kDreamBooth},
    {TorchWay::kSmallOptimizer, "--use_8bit_adam", kDreamBooth},
    {TorchWay::kShorterSequences, "--resolution 512", kDreamBooth, "",
     "the batch is 1 already: smaller pictures"},
    {TorchWay::kEvalBatch, "--num_validation_images 1   # or no --validation_prompt", kDreamBooth,
     "", "fewer pictures in a validation"},
    {TorchWay::kQuantized,
     "pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=torch.bfloat16, "
     "quantization_config=PipelineQuantizationConfig(...))",
     "docs/source/en/quantization/overview.md", "0.34"},
    {TorchWay::kReadToHost,
     "pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=torch.bfloat16)\n"
     "pipe.enable_model_cpu_offload()   # instead of pipe.to(\"cuda\")",
     kPipelines, "",
     "the traceback is in loading: parts of the pipeline in the host's memory until they are used",
     "speed"},
    {TorchWay::kSaveOneByOne,
     "pipe.to(\"cpu\"); pipe.save_pretrained(path, max_shard_size=\"2GB\")   # of a LoRA: "
     "pipe.save_lora_weights(path, ...)",
     kPipelines, "", "the traceback is in saving: the pipeline moved to the host first"},
});

}  // namespace

std::span<const Switch> SwitchesOfEngines(Framework framework) {
  switch (framework) {
    case Framework::kDeepSpeed:
      return kDeepSpeedSwitches;
    case Framework::kVllm:
      return kVllmSwitches;
    case Framework::kDiffusers:
      return kDiffusersSwitches;
    default:
      return {};
  }
}

}  // namespace plimsoll
