#include "diagnose/error_texts/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace plimsoll {
namespace {

constexpr auto kVendors = std::to_array<VendorFacts>({
    {Vendor::kNvidia, "GPU", "nvidia-smi", "PYTORCH_CUDA_ALLOC_CONF", "cuda",
     "a CUDA context, cuBLAS, cuDNN"},
    {Vendor::kAmd, "GPU", "rocm-smi --showpids", "PYTORCH_HIP_ALLOC_CONF", "cuda",
     "a HIP context, rocBLAS, MIOpen"},
    {Vendor::kIntel, "GPU", "xpu-smi ps", "", "xpu", "a context, oneDNN"},
    {Vendor::kApple, "Apple GPU", "", "", "mps", "buffers of Metal"},
    {Vendor::kAscend, "NPU", "npu-smi info", "PYTORCH_NPU_ALLOC_CONF", "npu",
     "a context, HCCL, the operators' workspaces"},
    {Vendor::kGaudi, "Gaudi device", "hl-smi", "", "hpu", "the graph compiler's workspaces"},
    {Vendor::kTpu, "TPU", "", "", "", "the program itself"},
    {Vendor::kOther, "device", "", "", "", "a context, libraries"},
});

struct RunnerName {
  Runner runner;
  std::string_view name;
};
constexpr auto kNames = std::to_array<RunnerName>({
    {Runner::kTorch, "PyTorch"},
    {Runner::kVllm, "vLLM"},
    {Runner::kSglang, "SGLang"},
    {Runner::kTextGenerationInference, "text-generation-inference"},
    {Runner::kLlamaCpp, "llama.cpp"},
    {Runner::kComfyUi, "ComfyUI"},
    {Runner::kImageUi, "the web UI"},
    {Runner::kDiffusers, "PyTorch"},
    {Runner::kTextGenerationUi, "PyTorch"},
    {Runner::kLmdeploy, "LMDeploy"},
    {Runner::kTensorRtLlm, "TensorRT-LLM"},
    {Runner::kXgboost, "XGBoost"},
    {Runner::kCudaJl, "CUDA.jl"},
    {Runner::kTorchXla, "PyTorch/XLA"},
    {Runner::kTensorFlow, "TensorFlow"},
    {Runner::kJax, "JAX"},
    {Runner::kPaddle, "Paddle"},
    {Runner::kCupy, "CuPy"},
    {Runner::kRmm, "RMM"},
    {Runner::kOnnxRuntime, "ONNX Runtime"},
    {Runner::kTensorRt, "TensorRT"},
    {Runner::kDirectMl, "DirectML"},
    {Runner::kMlx, "MLX"},
    {Runner::kUnknown, "the program"},
});

Runner RunnerOfProgram(Program program) {
  switch (program) {
    case Program::kVllm:
      return Runner::kVllm;
    case Program::kSglang:
      return Runner::kSglang;
    case Program::kTextGenerationInference:
      return Runner::kTextGenerationInference;
    case Program::kLlamaCpp:
      return Runner::kLlamaCpp;
    case Program::kComfyUi:
      return Runner::kComfyUi;
    case Program::kImageUi:
      return Runner::kImageUi;
    case Program::kDiffusers:
      return Runner::kDiffusers;
    case Program::kTextGenerationUi:
      return Runner::kTextGenerationUi;
    case Program::kLmdeploy:
      return Runner::kLmdeploy;
    case Program::kTensorRtLlm:
      return Runner::kTensorRtLlm;
    case Program::kXgboost:
      return Runner::kXgboost;
    case Program::kCudaJl:
      return Runner::kCudaJl;
    case Program::kTorchXla:
      return Runner::kTorchXla;
    case Program::kTensorFlow:
      return Runner::kTensorFlow;
    case Program::kJax:
      return Runner::kJax;
    case Program::kOther:
    case Program::kUnknown:
      break;
  }
  return Runner::kUnknown;
}

/// Releases that have a setting against fragmentation, and the setting.
struct PieceSetting {
  int first;
  std::string_view setting;
};
constexpr auto kPieceSettings = std::to_array<PieceSetting>(
    {{201, "expandable_segments:True"}, {110, "max_split_size_mb:128"}});

std::vector<std::string> LinesOfSetting(const OomMessage& message, std::string_view variable,
                                        std::string_view setting) {
  if (message.signs.windows) {
    return {fmt::format("set {}={}", variable, setting),
            "# in the same window, before python starts; in PowerShell:",
            fmt::format("$env:{} = \"{}\"", variable, setting)};
  }
  return {fmt::format("export {}={}", variable, setting),
          "# in the shell before python starts; in a notebook or script above \"import torch\":",
          fmt::format("import os; os.environ[\"{}\"] = \"{}\"", variable, setting)};
}

}  // namespace

Vendor VendorOf(const OomMessage& message) {
  using enum MessageSource;
  if (message.program == Program::kXgboost || message.program == Program::kCudaJl) {
    return Vendor::kNvidia;
  }
  switch (message.source) {
    case kTorchHip:
    case kHipRuntime:
    case kHipInUse:
      return Vendor::kAmd;
    case kTorchXpu:
      return Vendor::kIntel;
    case kTorchMps:
    case kMlx:
      return Vendor::kApple;
    case kTorchNpu:
      return Vendor::kAscend;
    case kHabana:
      return Vendor::kGaudi;
    case kTorchOtherDevice:
    case kDirectMl:
    case kUnknown:
      return Vendor::kOther;
    case kJax:
      return message.signs.tpu ? Vendor::kTpu : Vendor::kNvidia;
    default:
      return Vendor::kNvidia;
  }
}

const VendorFacts& FactsOf(const OomMessage& message) {
  const auto at = std::find_if(kVendors.begin(), kVendors.end(), [&](const VendorFacts& facts) {
    return facts.vendor == VendorOf(message);
  });
  PLIMSOLL_CHECK(at != kVendors.end());
  return *at;
}

Runner RunnerOf(const OomMessage& message) {
  using enum MessageSource;
  if (message.program != Program::kUnknown) return RunnerOfProgram(message.program);
  switch (message.source) {
    case kTensorFlow:
      return Runner::kTensorFlow;
    case kJax:
      return Runner::kJax;
    case kGgml:
      return Runner::kLlamaCpp;
    case kPaddle:
      return Runner::kPaddle;
    case kCupy:
      return Runner::kCupy;
    case kRmm:
      return Runner::kRmm;
    case kOnnxRuntime:
      return Runner::kOnnxRuntime;
    case kTensorRt:
      return Runner::kTensorRt;
    case kDirectMl:
      return Runner::kDirectMl;
    case kMlx:
      return Runner::kMlx;
    case kServer:
    case kUnknown:
    case kHostMemory:
      return Runner::kUnknown;
    default:
      return Runner::kTorch;
  }
}

std::string_view NameOf(Runner runner) {
  for (const RunnerName& row : kNames) {
    if (row.runner == runner) return row.name;
  }
  return "the program";
}

bool IsTorchScript(Runner runner) { return runner == Runner::kTorch; }

/// PyTorch 2.1 and newer on Linux has expandable segments; 1.10 and newer a limit for splitting. A
/// release that is not known counts as the oldest of its range.
std::optional<Remedy> KeepTogether(const OomMessage& message) {
  using enum MessageSource;
  std::string_view variable = FactsOf(message).variable;
  const bool ours =
      message.source == kTorchCuda || message.source == kTorchHip || message.source == kTorchNpu;
  if (!ours || variable.empty() || message.expandable_on) return {};
  const int version =
      message.source == kTorchNpu ? 201 : message.torch.value_or(TorchVersions{}).first;
  // The name that 2.10 gives in its hint. Others say the old one, which works in all of them; the
  // new one does nothing in 2.9.
  if (message.torch == TorchVersions{.first = 210, .last = 210}) variable = "PYTORCH_ALLOC_CONF";
  for (const PieceSetting& row : kPieceSettings) {
    const bool expandable = row.first == 201;
    if (version < row.first || (expandable && message.signs.windows)) continue;
    Remedy remedy = Rule(fmt::format("{}={}", variable, row.setting), Lever::kAllocatorSetting,
                         LinesOfSetting(message, variable, row.setting));
    if (expandable && VendorOf(message) != Vendor::kNvidia) {
      remedy.remark = "PyTorch prints a warning and goes on without it where the driver lacks it";
    }
    return remedy;
  }
  return {};
}

void AdaptToDevice(const OomMessage& message, std::vector<std::string>& lines) {
  const std::string module(FactsOf(message).module);
  if (module.empty() || module == "cuda") return;
  const auto replace = [](std::string& line, std::string_view from, const std::string& to) {
    for (std::size_t at = line.find(from); at != std::string::npos; at = line.find(from, at + 1)) {
      line.replace(at, from.size(), to);
    }
  };
  for (std::string& line : lines) {
    replace(line, "torch.cuda.", "torch." + module + ".");
    replace(line, "\"cuda\"", "\"" + module + "\"");
  }
}

Remedy SeeWhoUsesIt(const OomMessage& message, std::string change) {
  const std::string_view watch = FactsOf(message).watch;
  std::vector<std::string> code;
  if (!watch.empty()) code.emplace_back(watch);
  if (VendorOf(message) == Vendor::kNvidia && !message.signs.windows) {
    code.emplace_back("sudo fuser -v /dev/nvidia*   # also finds processes that nvidia-smi hides");
  }
  return Rule(std::move(change), Lever::kOtherProcesses, std::move(code));
}

}  // namespace plimsoll
