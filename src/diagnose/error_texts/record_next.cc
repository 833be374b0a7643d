// What to record next, for each kind of device.
#include <array>

#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/sentences.h"

namespace plimsoll {
namespace {

std::vector<std::string> SnapshotLines(const std::string& module, const std::string& observer) {
  return {
      "# at the beginning of the program (PyTorch 2.1 or newer):",
      "import os, torch",
      "torch." + module + ".memory._record_memory_history(max_entries=200000, stacks=\"python\")",
      "def dump(*_):",
      "    torch." + module +
          ".memory._dump_snapshot(f\"snapshot.rank{os.environ.get('RANK', 0)}.pickle\")",
      observer,
      "# or around the training loop:  except torch.OutOfMemoryError: dump(); raise",
      "# without an edit: put these lines into record/sitecustomize.py and run",
      "#   PYTHONPATH=record python train.py",
      "# then:",
      "plimsoll explain snapshot.rank*.pickle",
  };
}

/// What to record where PyTorch has no snapshots, or another library runs.
struct RecordRow {
  MessageSource source;
  std::string_view lines;
};
constexpr auto kRecordRows = std::to_array<RecordRow>({
    {MessageSource::kTorchMps,
     "# Apple GPUs have no snapshots; print what is in use at every step:\n"
     "print(torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory())"},
    {MessageSource::kTorchAsync,
     "# cudaMallocAsync records no history: run once with PyTorch's own allocator,\n"
     "#   unset PYTORCH_CUDA_ALLOC_CONF   (ComfyUI: --disable-cuda-malloc)\n"
     "# and record there:\n"
     "plimsoll run -- python train.py"},
    {MessageSource::kHabana,
     "# Gaudi has no snapshots; print what is in use at every step:\n"
     "print(habana_frameworks.torch.hpu.memory_summary())"},
    {MessageSource::kTensorFlow,
     "# TensorFlow has no snapshots; the profiler shows its memory by operator:\n"
     "tf.profiler.experimental.start(\"logs\")\n"
     "print(tf.config.experimental.get_memory_info(\"GPU:0\"))"},
    {MessageSource::kJax,
     "# what is alive, by the line that made it (read it with pprof):\n"
     "jax.profiler.save_device_memory_profile(\"memory.prof\")"},
    {MessageSource::kVirtualAddress, "ulimit -v\ncat /proc/sys/vm/max_map_count"},
});

/// Whether its step can be predicted: DeepSpeed's engine is not captured.
bool Trains(const OomMessage& message) {
  return RunnerOf(message) == Runner::kTorch &&
         !message.signs.frameworks.Has(Framework::kDeepSpeed) &&
         message.stage != Stage::kEvaluation && message.stage != Stage::kGeneration;
}

/// A snapshot, and what no snapshot sees; only where PyTorch runs.
RecordAdvice OutsideToo(const OomMessage& message) {
  if (!IsTorchScript(RunnerOf(message))) return {};
  return {.by_run = true,
          .trains = Trains(message),
          .lines = {"# what no snapshot sees, while the job runs:",
                    std::string(FactsOf(message).watch)}};
}

}  // namespace

RecordAdvice RecordNext(const OomMessage& message) {
  using enum MessageSource;
  // There is no script of the user's to record.
  if (message.source == kHostMemory && message.program != Program::kUnknown) return {};
  if (!MayBePython(message)) return {};
  if (message.program == Program::kTorchXla) {
    return {.lines = {"# XLA's devices have no snapshots; print what is in use at every step:",
                      "print(torch_xla.core.xla_model.get_memory_info(torch_xla.device()))"}};
  }
  switch (message.source) {
    case kTorchCuda:
    case kTorchHip:
    case kTorchRejected:
    case kTorchNvml:
      return {.by_run = true, .trains = Trains(message)};
    case kHostMemory:
      return {.by_run = !message.signs.windows};
    case kTorchNpu:
      return {.lines = SnapshotLines("npu", "# on the error, in an except block:  dump(); raise")};
    case kTorchXpu:
      return {.lines = SnapshotLines("xpu", "# Intel GPUs have snapshots from PyTorch 2.12 on")};
    case kCudaRuntime:
    case kHipRuntime:
    case kCublas:
    case kCudnn:
    case kNccl:
    case kBitsandbytes:
      return OutsideToo(message);
    default:
      break;
  }
  for (const RecordRow& row : kRecordRows) {
    if (row.source == message.source) return {.lines = LinesOf(row.lines)};
  }
  return {};
}

}  // namespace plimsoll
