#include "readers/error_text/signs.h"

#include <array>

#include "base/text.h"

namespace plimsoll {
namespace {

struct ProgramSign {
  std::string_view words;
  Program program;
};
// Paths and names that stand in tracebacks and logs of these programs and of no other.
constexpr auto kPrograms = std::to_array<ProgramSign>({
    {"VllmWorker", Program::kVllm},
    {"cumem_allocator", Program::kVllm},
    {"vllm/", Program::kVllm},
    {"gpu_memory_utilization", Program::kVllm},
    {"EngineCore", Program::kVllm},
    {"RayWorkerWrapper", Program::kVllm},
    {"[core.py:", Program::kVllm},
    {"sglang/", Program::kSglang},
    {"token_to_kv_pool", Program::kSglang},
    {"mem-fraction-static", Program::kSglang},
    {"text_generation_server", Program::kTextGenerationInference},
    {"text_generation_client", Program::kTextGenerationInference},
    {"text-generation-launcher", Program::kTextGenerationInference},
    {"ggml", Program::kLlamaCpp},
    {"llama_model_load", Program::kLlamaCpp},
    {"llama.cpp", Program::kLlamaCpp},
    {"llama-server", Program::kLlamaCpp},
    {"ollama", Program::kLlamaCpp},
    {"llama runner process", Program::kLlamaCpp},
    {"llama_decode", Program::kLlamaCpp},
    {"ComfyUI", Program::kComfyUi},
    {"comfy/", Program::kComfyUi},
    {"comfy\\", Program::kComfyUi},
    {"KSampler", Program::kComfyUi},
    {"retrying with tiled VAE", Program::kComfyUi},
    {"!!! Exception during processing !!!", Program::kComfyUi},
    {"stable-diffusion-webui", Program::kImageUi},
    {"sd-webui", Program::kImageUi},
    {"Torch active/reserved:", Program::kImageUi},
    {"InvokeAI", Program::kImageUi},
    {"invokeai", Program::kImageUi},
    {"text-generation-webui", Program::kTextGenerationUi},
    {"lmdeploy", Program::kLmdeploy},
    {"[TM][ERROR]", Program::kLmdeploy},
    {"TensorRT-LLM", Program::kTensorRtLlm},
    {"tensorrt_llm", Program::kTensorRtLlm},
    {"torch_xla", Program::kTorchXla},
    {"Bad StatusOr access", Program::kTorchXla},
    {"xgboost", Program::kXgboost},
    {"diffusers/pipelines", Program::kDiffusers},
    {"diffusers\\pipelines", Program::kDiffusers},
});

struct FlagSign {
  std::string_view words;
  bool Signs::*flag;
};
constexpr auto kFlags = std::to_array<FlagSign>({
    {":\\Users\\", &Signs::windows},
    {"\\site-packages\\", &Signs::windows},
    {"\\Scripts\\", &Signs::windows},
    {"WinError", &Signs::windows},
    {"at C:\\", &Signs::windows},
    {"\"C:\\", &Signs::windows},
    {"python_embeded", &Signs::windows},
    {"microsoft-standard-WSL", &Signs::wsl},
    {"/mnt/c/", &Signs::wsl},
    {"(WSL", &Signs::wsl},
    {"NCCL", &Signs::communicates},
    {"torchrun", &Signs::communicates},
    {"torch/distributed", &Signs::communicates},
    {"torch.distributed", &Signs::communicates},
    {"DistributedDataParallel", &Signs::communicates},
    {"deepspeed", &Signs::communicates},
    {"/data_parallel.py", &Signs::data_parallel},
    {"\\data_parallel.py", &Signs::data_parallel},
    {"Jetson", &Signs::integrated},
    {"-tegra", &Signs::integrated},
    {"Tegra", &Signs::integrated},
    {"nvgpu", &Signs::integrated},
    {"/opt/nvidia/l4t", &Signs::integrated},
    {"NVIDIA GB10", &Signs::integrated},
    {"DGX Spark", &Signs::integrated},
    {"pin memory thread", &Signs::pins_memory},
    {"pin_memory.py", &Signs::pins_memory},
    {".pin_memory(", &Signs::pins_memory},
    {"cudaHostAlloc", &Signs::pins_memory},
    {"cudaMallocHost", &Signs::pins_memory},
    {"_HBM", &Signs::tpu},
    {"XLA:TPU", &Signs::tpu},
    {"libtpu", &Signs::tpu},
    {"memory space hbm", &Signs::tpu},
});

/// What a text of TensorFlow or JAX has in front of a library's error.
constexpr auto kFrameworks = std::to_array<ProgramSign>({
    {"tensorflow/", Program::kTensorFlow},
    {"tensorflow.python", Program::kTensorFlow},
    {"jaxlib", Program::kJax},
    {"jax.errors", Program::kJax},
});

// One number for each sign: programs, frameworks, flags, and whether PyTorch is named at all.
constexpr std::size_t kFirstFramework = kPrograms.size();
constexpr std::size_t kFirstFlag = kFirstFramework + kFrameworks.size();
constexpr std::size_t kTorch = kFirstFlag + kFlags.size();
static_assert(kTorch < SignSet().size());

void FindProgram(const SignSet& signs, OomMessage& message) {
  const auto open = [&] {
    return message.program == Program::kUnknown || message.program == Program::kOther;
  };
  for (std::size_t i = 0; i < kPrograms.size(); ++i) {
    if (open() && signs[i]) message.program = kPrograms[i].program;
  }
  // PyTorch's own messages stay PyTorch's where TensorFlow only warns in the same log.
  const bool library =
      message.source == MessageSource::kCudaRuntime || message.source == MessageSource::kCublas ||
      message.source == MessageSource::kCudnn || message.source == MessageSource::kHostMemory;
  if (!library || signs[kTorch]) return;
  for (std::size_t i = 0; i < kFrameworks.size(); ++i) {
    if (open() && signs[kFirstFramework + i]) message.program = kFrameworks[i].program;
  }
}

}  // namespace

SignSet SignsOf(std::string_view line) {
  SignSet signs;
  const auto look = [&](std::size_t number, std::string_view words) {
    if (line.find(words) != std::string_view::npos) signs.set(number);
  };
  for (std::size_t i = 0; i < kPrograms.size(); ++i) look(i, kPrograms[i].words);
  for (std::size_t i = 0; i < kFrameworks.size(); ++i) {
    look(kFirstFramework + i, kFrameworks[i].words);
  }
  for (std::size_t i = 0; i < kFlags.size(); ++i) look(kFirstFlag + i, kFlags[i].words);
  look(kTorch, "torch");
  return signs;
}

void ApplySigns(const SignSet& signs, OomMessage& message) {
  // Words that PyTorch does not use, below a traceback of it: some extension's, and PyTorch runs.
  if (message.program == Program::kOther && signs[kTorch]) message.program = Program::kUnknown;
  FindProgram(signs, message);
  for (std::size_t i = 0; i < kFlags.size(); ++i) {
    if (signs[kFirstFlag + i]) message.signs.*kFlags[i].flag = true;
  }
  if (message.rank) message.signs.communicates = true;
  // A call into CUDA that page-locks memory fails for lack of the host's.
  if (message.signs.pins_memory && message.source == MessageSource::kCudaRuntime) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kPinned;
  }
}

}  // namespace plimsoll
