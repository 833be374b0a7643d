#include "readers/error_text/signs.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

struct ProgramSign {
  std::string_view words;
  Program program;
};
// Paths and names that stand in tracebacks and logs of these programs and of no other.
constexpr auto kPrograms = std::to_array<ProgramSign>({
    {"VllmWorker", Program::kVllm},
    {"/vllm/", Program::kVllm},
    {"gpu_memory_utilization", Program::kVllm},
    {"EngineCore", Program::kVllm},
    {"RayWorkerWrapper", Program::kVllm},
    {"[core.py:", Program::kVllm},
    {"/sglang/", Program::kSglang},
    {"mem-fraction-static", Program::kSglang},
    {"text_generation_server", Program::kTextGenerationInference},
    {"text_generation_client", Program::kTextGenerationInference},
    {"text-generation-launcher", Program::kTextGenerationInference},
    {"ggml", Program::kLlamaCpp},
    {"llama_model_load", Program::kLlamaCpp},
    {"llama.cpp", Program::kLlamaCpp},
    {"ollama", Program::kLlamaCpp},
    {"ComfyUI", Program::kComfyUi},
    {"comfy/", Program::kComfyUi},
    {"comfy\\", Program::kComfyUi},
    {"KSampler", Program::kComfyUi},
    {"!!! Exception during processing !!!", Program::kComfyUi},
    {"stable-diffusion-webui", Program::kImageUi},
    {"sd-webui", Program::kImageUi},
    {"InvokeAI", Program::kImageUi},
    {"invokeai", Program::kImageUi},
    {"text-generation-webui", Program::kTextGenerationUi},
    {"lmdeploy", Program::kLmdeploy},
    {"[TM][ERROR]", Program::kLmdeploy},
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
    {"cudaHostAlloc", &Signs::pins_memory},
    {"cudaMallocHost", &Signs::pins_memory},
});

}  // namespace

void ReadSigns(std::string_view lines, OomMessage& message) {
  for (const ProgramSign& sign : kPrograms) {
    if (message.program != Program::kUnknown) break;
    if (Contains(lines, sign.words)) message.program = sign.program;
  }
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
