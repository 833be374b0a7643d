#include "readers/error_text/signs.h"

#include <algorithm>
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

void FindProgram(std::string_view lines, OomMessage& message) {
  const auto open = [&] {
    return message.program == Program::kUnknown || message.program == Program::kOther;
  };
  for (const ProgramSign& sign : kPrograms) {
    if (open() && Contains(lines, sign.words)) message.program = sign.program;
  }
  // PyTorch's own messages stay PyTorch's where TensorFlow only warns in the same log.
  const bool library =
      message.source == MessageSource::kCudaRuntime || message.source == MessageSource::kCublas ||
      message.source == MessageSource::kCudnn || message.source == MessageSource::kHostMemory;
  if (!library || Contains(lines, "torch")) return;
  for (const ProgramSign& sign : kFrameworks) {
    if (open() && Contains(lines, sign.words)) message.program = sign.program;
  }
}

}  // namespace

void ReadSigns(std::string_view lines, OomMessage& message) {
  // Words that PyTorch does not use, below a traceback of it: some extension's, and PyTorch runs.
  if (message.program == Program::kOther && Contains(lines, "torch")) {
    message.program = Program::kUnknown;
  }
  FindProgram(lines, message);
  for (const FlagSign& sign : kFlags) {
    if (!(message.signs.*sign.flag) && Contains(lines, sign.words)) {
      message.signs.*sign.flag = true;
    }
  }
  if (message.rank) message.signs.communicates = true;
  // A call into CUDA that page-locks memory fails for lack of the host's.
  if (message.signs.pins_memory && message.source == MessageSource::kCudaRuntime) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kPinned;
  }
}

Activity ActivityOf(std::string_view file, std::string_view function) {
  if (Contains(function, "from_pretrained") || Contains(function, "load_state_dict") ||
      Contains(function, "load_checkpoint") || Contains(function, "load_model") ||
      Contains(file, "serialization.py")) {
    return Activity::kLoading;
  }
  if (function == "generate" || Contains(file, "/generation/")) return Activity::kGeneration;
  for (std::string_view name : {"evaluate", "eval_", "validat", "evaluation_loop", "test_step"}) {
    if (Contains(function, name)) return Activity::kEvaluation;
  }
  if (function == "backward" || Contains(file, "autograd")) return Activity::kBackward;
  if (Contains(file, "/optim/") || Contains(file, "\\optim\\")) return Activity::kOptimizerStep;
  return function == "forward" ? Activity::kForward : Activity::kUnknown;
}

Activity MoreTelling(Activity a, Activity b) {
  // Of the two, the outer one decides: what calls a forward tells more than the forward.
  constexpr auto kOrder =
      std::to_array({Activity::kLoading, Activity::kGeneration, Activity::kEvaluation,
                     Activity::kOptimizerStep, Activity::kBackward, Activity::kForward});
  for (Activity activity : kOrder) {
    if (a == activity || b == activity) return activity;
  }
  return Activity::kUnknown;
}

}  // namespace plimsoll
