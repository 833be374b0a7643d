// Ways to need less memory, a row each, for programs that are no scripts of PyTorch's and none of
// the frameworks of ways/switches.h.
#include <fmt/format.h>

#include <array>
#include <span>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

struct Way {
  Runner runner;
  Lever lever;
  std::string_view change;
  std::string_view code = {};  // lines, separated by line ends
  std::string_view costs = {};
};

using enum Runner;
using enum Lever;

constexpr auto kRunnerWays = std::to_array<Way>({
    {kSglang, kServerSetting,
     "a lower --mem-fraction-static leaves room for activations, a smaller "
     "--chunked-prefill-size and fewer --max-running-requests need less",
     "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.8 "
     "--chunked-prefill-size 2048"},
    {kSglang, kQuantization, "a quantized model"},
    {kSglang, kSharding, "--tp over more devices"},

    {kTextGenerationInference, kServerSetting,
     "smaller --max-batch-prefill-tokens, --max-input-tokens and --max-total-tokens",
     "text-generation-launcher --model-id MODEL --max-batch-prefill-tokens 2048 "
     "--max-total-tokens 4096"},
    {kTextGenerationInference, kQuantization, "--quantize, or --num-shard over more GPUs"},

    {kLlamaCpp, kOffload, "fewer layers on the GPU (Ollama: num_gpu)",
     "llama-server -m model.gguf -ngl 20   # lower until it fits", "speed"},
    {kLlamaCpp, kServerSetting, "a shorter context and fewer parallel slots (Ollama: num_ctx)",
     "llama-server -m model.gguf -c 8192 -np 1 -ub 256"},
    {kLlamaCpp, kQuantization, "a smaller quantization of the model, a quantized KV cache",
     "llama-server -m model.gguf -fa on -ctk q8_0 -ctv q8_0"},

    {kComfyUi, kServerSetting, "start with less of the model on the GPU",
     "python main.py --lowvram   # or --novram; --reserve-vram 1 leaves room for the desktop",
     "speed"},
    {kComfyUi, kSmallerBatch, "smaller images, fewer frames at once, VAE Decode (Tiled)"},
    {kComfyUi, kQuantization, "weights in fp8 or GGUF"},

    {kImageUi, kServerSetting, "start with less of the model on the GPU: --medvram or --lowvram",
     "", "speed"},
    {kImageUi, kSmallerBatch, "smaller images, batch size 1, tiled VAE and upscaling"},

    {kTextGenerationUi, kServerSetting, "a shorter context, or a KV cache with fewer bits"},
    {kTextGenerationUi, kQuantization, "a model with fewer bits (GGUF, EXL2, or --load-in-4bit)",
     "python server.py --load-in-4bit"},

    {kLmdeploy, kServerSetting, "a smaller share of the device for the KV cache, a shorter context",
     "lmdeploy serve api_server MODEL --cache-max-entry-count 0.5 --session-len 8192"},
    {kLmdeploy, kQuantization, "a quantized model (AWQ), or --quant-policy 8 for the KV cache"},
    {kLmdeploy, kSharding, "--tp over more GPUs"},

    {kTensorRtLlm, kServerSetting, "a smaller share of the device for the KV cache",
     "trtllm-serve MODEL --kv_cache_free_gpu_memory_fraction 0.8"},
    {kTensorRtLlm, kSmallerBatch, "a smaller --max_batch_size and --max_num_tokens"},
    {kTensorRtLlm, kQuantization, "a quantized model (FP8, AWQ)"},
    {kTensorRtLlm, kSharding, "--tp_size over more GPUs"},

    {kXgboost, kSmallerBatch, "quantized data, made in parts on the device",
     "dtrain = xgboost.QuantileDMatrix(X, y, max_bin=128)"},
    {kXgboost, kOther,
     "fewer leaves and rows at once: a smaller max_depth, subsample=0.5 with "
     "sampling_method=\"gradient_based\""},
    {kXgboost, kOffload, "data in external memory, or on the CPU", "params[\"device\"] = \"cpu\"",
     "speed"},

    {kCudaJl, kReleaseTensors, "drop arrays that are no longer needed and give the pool back",
     "a = nothing; GC.gc(); CUDA.reclaim()"},
    {kCudaJl, kSmallerBatch, "smaller arrays: Float32 for Float64, the work in chunks"},

    {kTorchXla, kSmallerBatch, "a smaller batch for each device"},
    {kTorchXla, kMixedPrecision, "bf16",
     "with torch.autocast(\"xla\", dtype=torch.bfloat16):\n"
     "    loss = loss_fn(model(x), y)"},
    {kTorchXla, kCheckpointing, "checkpointed activations",
     "from torch_xla.utils.checkpoint import checkpoint", "time for one more forward pass"},
    {kTorchXla, kSharding, "parameters over more devices (SPMD, FSDP)"},

    {kTensorFlow, kSmallerBatch, "a smaller batch"},
    {kTensorFlow, kMixedPrecision, "mixed precision",
     "tf.keras.mixed_precision.set_global_policy(\"mixed_float16\")"},
    {kTensorFlow, kCheckpointing, "recomputed activations", "layer = tf.recompute_grad(layer)",
     "time for one more forward pass"},

    {kJax, kSmallerBatch, "a smaller batch, or accumulation over micro-batches (jax.lax.scan)"},
    {kJax, kCheckpointing, "rematerialised layers", "block = jax.checkpoint(block)",
     "time for one more forward pass"},
    {kJax, kReleaseTensors, "inputs that are overwritten in place",
     "step = jax.jit(step, donate_argnums=(0,))"},

    {kPaddle, kSmallerBatch, "a smaller batch or smaller images"},
    {kPaddle, kMixedPrecision, "mixed precision: paddle.amp.auto_cast()"},
    {kPaddle, kAllocatorSetting, "memory taken as it is needed rather than in one piece",
     "export FLAGS_allocator_strategy=auto_growth"},

    {kCupy, kReleaseTensors, "drop arrays that are no longer needed and give the pool back",
     "del a; cupy.get_default_memory_pool().free_all_blocks()"},
    {kCupy, kSmallerBatch, "smaller arrays: float32 for float64, the work in chunks"},

    {kRmm, kSmallerBatch, "the data in parts: dask_cudf, or fewer columns and rows at a time"},
    {kRmm, kOffload, "let it spill to the host's memory",
     "cudf.set_option(\"spill\", True)\nrmm.reinitialize(managed_memory=True)", "speed"},

    {kOnnxRuntime, kSmallerBatch, "a smaller batch or input, fewer sessions and threads at once"},
    {kOnnxRuntime, kAllocatorSetting, "an arena that grows by what is asked for",
     "providers = [(\"CUDAExecutionProvider\", {\"arena_extend_strategy\": "
     "\"kSameAsRequested\"})]"},

    {kTensorRt, kServerSetting, "a smaller workspace while the engine is built",
     "config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)"},
    {kTensorRt, kSmallerBatch, "a smaller batch or smaller maximum shapes in the profile"},

    {kDirectMl, kSmallerBatch, "a smaller batch or smaller images"},
    {kDirectMl, kMixedPrecision, "weights in fp16"},

    {kMlx, kSmallerBatch, "a smaller batch, a shorter prompt or context"},
    {kMlx, kQuantization, "a model with fewer bits",
     "mlx_lm.convert --hf-path MODEL -q --q-bits 4"},
    {kMlx, kReleaseTensors, "give back what MLX keeps for reuse", "mx.clear_cache()"},

    {kUnknown, kSmallerBatch, "a smaller batch or input"},
});

/// A server that found no room for its KV cache needs a larger share of the device, not a smaller
/// one.
constexpr auto kCacheWays = std::to_array<Way>({
    {kSglang, kServerSetting,
     "a higher --mem-fraction-static: the KV cache gets what the weights leave of that share",
     "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.92"},
    {kSglang, kSmallerBatch, "fewer --max-running-requests and a shorter --context-length"},
    {kSglang, kQuantization, "a quantized model"},
    {kSglang, kSharding, "--tp over more devices"},
});

/// Of a program that serves a model, on the host.
constexpr auto kHostWays = std::to_array<Way>({
    {kLlamaCpp, kOffload,
     "more layers on the GPU, as far as it has room: the host keeps the others (Ollama: num_gpu)",
     "llama-server -m model.gguf -ngl 99   # lower if the GPU is full"},
    {kLlamaCpp, kQuantization, "a smaller quantization of the model"},
    {kLlamaCpp, kServerSetting, "a shorter context and fewer parallel slots (Ollama: num_ctx)",
     "llama-server -m model.gguf -c 8192 -np 1"},
    {kVllm, kServerSetting, "less host memory set aside", "vllm serve MODEL --swap-space 0"},
    {kTensorFlow, kSmallerBatch,
     "smaller arrays, or the data in parts: tf.data instead of one tensor"},
    {kJax, kSmallerBatch, "smaller arrays, or the work in parts (jax.lax.map)"},
});

std::vector<Remedy> Listed(std::span<const Way> ways, Runner runner) {
  std::vector<Remedy> remedies;
  for (const Way& way : ways) {
    if (way.runner != runner) continue;
    remedies.push_back(
        Rule(std::string(way.change), way.lever, LinesOf(way.code), std::string(way.costs)));
  }
  return remedies;
}

std::vector<Remedy> RoomForCache(const OomMessage& message) {
  const Runner runner = RunnerOf(message);
  return runner == kVllm ? InWordsOfJob(message, RoomForVllmCache(message))
                         : Listed(kCacheWays, runner);
}

std::vector<Remedy> Ways(const OomMessage& message) {
  const Runner runner = RunnerOf(message);
  return runner == kTorch || IsOfFramework(runner) ? StageWays(message)
                                                   : Listed(kRunnerWays, runner);
}

}  // namespace

std::vector<Remedy> WithModel(const OomMessage& message, std::vector<Remedy> remedies) {
  constexpr std::string_view kPlace = "MODEL";
  if (message.model.empty()) return remedies;
  for (Remedy& remedy : remedies) {
    for (std::string& line : remedy.code) {
      const std::size_t at = line.find(kPlace);
      if (at != std::string::npos) line.replace(at, kPlace.size(), message.model);
    }
  }
  return remedies;
}

std::vector<Remedy> NeedLess(const OomMessage& message) {
  if (message.source == MessageSource::kServer && message.subject == "the KV cache") {
    return WithModel(message, RoomForCache(message));
  }
  std::vector<Remedy> remedies;
  if (message.signs.data_parallel) {
    remedies.push_back(Rule(
        "DistributedDataParallel instead of DataParallel, which gathers outputs and gradients on "
        "the first GPU: only that one fills",
        Lever::kSharding, {"torchrun --nproc_per_node=4 train.py"}));
  }
  const bool apple = VendorOf(message) == Vendor::kApple;
  for (Remedy& remedy : Ways(message)) {
    // One GPU, and no 8-bit optimizer for it.
    if (apple && (remedy.lever == kSharding || remedy.lever == kOptimizer)) continue;
    if (message.subject == "every batch size" && remedy.lever == kSmallerBatch) continue;
    // While weights are loaded, nothing but the weights is on the device.
    const bool serves = message.program == Program::kVllm || message.program == Program::kSglang;
    if (serves && !BatchMatters(message) && remedy.lever == kServerSetting) continue;
    remedies.push_back(std::move(remedy));
  }
  return WithModel(message, std::move(remedies));
}

std::vector<Remedy> NeedLessOnHost(const OomMessage& message) {
  return WithModel(message, Listed(kHostWays, RunnerOf(message)));
}

}  // namespace plimsoll
