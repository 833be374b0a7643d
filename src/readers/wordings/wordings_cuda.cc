// The CUDA runtime and the libraries that call it directly. They say that memory ran out and
// little else.
#include <charconv>

#include "readers/wordings/wordings.h"

namespace plimsoll {
namespace {

/// NCCL puts the device in front: "node7:4242:4300 [3] p2p.cc:275 NCCL WARN Cuda failure …".
std::optional<int> DeviceOfNcclLine(std::string_view before) {
  before.remove_prefix(before.rfind('\n') + 1);
  const std::size_t mark = before.rfind("NCCL WARN");
  const std::size_t open = before.rfind('[', mark);
  if (mark == std::string_view::npos || open == std::string_view::npos) return {};
  int device = 0;
  const char* end = before.data() + mark;
  const auto [p, error] = std::from_chars(before.data() + open + 1, end, device);
  return error == std::errc() && *p == ']' ? std::optional<int>(device) : std::nullopt;
}

}  // namespace

/// "CUDA error: out of memory" and its relatives: no figure at all. ggml adds the device below.
bool ReadCudaRuntime(Scanner& scanner, std::string_view, OomMessage& message) {
  scanner.Literal(": out of memory");
  // Programs that call the driver themselves name the call: "CUDA error: Out of memory in
  // cuMemAlloc".
  if (scanner.AnyOf({"in cuMem", "in cuMalloc", "in cuArray"})) message.program = Program::kOther;
  // vLLM's allocator for engines that sleep: "CUDA Error: out of memory at cumem_allocator.cpp:62".
  Scanner behind = scanner;
  if (behind.Literal("at") && behind.Until(":\n", 160).ends_with("cumem_allocator.cpp")) {
    message.program = Program::kVllm;
    message.subject = "waking up";
  }
  if (scanner.Literal("current device:")) {
    if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  }
  return true;
}

/// "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
bool ReadCublas(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Literal("when calling")) return true;
  message.subject = scanner.Until("(\n", 64);
  return true;
}

/// "cublas runtime error : resource allocation failed" of PyTorch 1.x.
bool ReadOldCublas(Scanner&, std::string_view, OomMessage&) { return true; }

/// "Unable to find a valid cuDNN algorithm to run convolution", and in newer releases "FIND was
/// unable to find an engine to execute this computation": as a rule no workspace could be had.
bool ReadCudnnNoAlgorithm(Scanner& scanner, std::string_view, OomMessage& message) {
  scanner.Literal("to run convolution");
  message.subject = "no algorithm";
  return true;
}

/// A plan that failed is followed by another one: that warning ends in "(Triggered internally at".
bool ReadCudnn(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.survived = before.find("Plan failed") != std::string_view::npos ||
                     scanner.Literal("(Triggered internally at");
  scanner.AnyOf({". This error may appear if you passed in a non-contiguous input", "."});
  return true;
}

/// "Failed to CUDA calloc 536870912 bytes", also "calloc async".
bool ReadNcclCalloc(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.device = DeviceOfNcclLine(before);
  scanner.Literal("async");
  message.cut_off = !scanner.Size(message.requested) && scanner.ended();
  return true;
}

bool ReadNcclFailure(Scanner&, std::string_view before, OomMessage& message) {
  message.device = DeviceOfNcclLine(before);
  return true;
}

/// "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::939524096 (896)MB"
bool ReadHabana(Scanner& scanner, std::string_view before, OomMessage& message) {
  const std::size_t rank = before.rfind("[Rank:");
  if (rank != std::string_view::npos) {
    int value = 0;
    const char* end = before.data() + before.size();
    const auto [p, error] = std::from_chars(before.data() + rank + 6, end, value);
    if (error == std::errc() && p != end && *p == ']') message.rank = value;
  }
  if (scanner.Literal("Allocation failed for size::")) {
    message.requested = scanner.Integer();
    message.cut_off = !message.requested;
    return true;
  }
  return scanner.Literal("Allocation failed") || scanner.Literal("OOM") || scanner.ended();
}

/// "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`": other calls fail so for
/// other reasons.
bool ReadCublasHandle(Scanner& scanner, std::string_view, OomMessage& message) {
  message.subject = "cublasCreate";
  scanner.Literal("when calling");
  scanner.Literal("`");
  return scanner.Literal("cublasCreate");
}

/// The same in words that PyTorch does not use: what is around it may still show that it runs.
bool ReadCudaCall(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.program = Program::kOther;
  return ReadCudaRuntime(scanner, before, message);
}

/// "[TensorRT-LLM][ERROR] CUDA runtime error in cudaMallocAsync(…): out of memory".
bool ReadTensorRtLlm(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kOther;
  return scanner.SkipPast("): out of memory", 200);
}

/// accelerate's "No executable batch size found, reached zero.": it halved the batch until none was
/// left.
bool ReadNoBatchSize(Scanner&, std::string_view, OomMessage& message) {
  message.subject = "every batch size";
  return true;
}

/// "Memory critical error by agent node-0 (Agent handle: 0x5) on address 0x7f. Reason: Memory in
/// use.": memory was to be given back that a kernel still used.
bool ReadHipInUse(Scanner& scanner, std::string_view, OomMessage&) {
  return scanner.SkipPast("Reason: Memory in use", 160);
}

/// "Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit
/// the quantized model.": transformers found that before it loaded.
bool ReadTooLargeToLoad(Scanner&, std::string_view, OomMessage& message) {
  message.subject = "the weights";
  message.stage = Stage::kLoad;
  return true;
}

}  // namespace plimsoll
