// Libraries with allocators of their own: Paddle, CuPy, RMM, ONNX Runtime, TensorRT, DirectML, MLX,
// bitsandbytes.
#include <algorithm>

#include "readers/wordings/wordings.h"

namespace plimsoll {

/// "Out of memory error on GPU 0. Cannot allocate 3.12GB memory on GPU 0, [7.28GB memory has been
/// allocated and ]available memory is only 117.75MB."
bool ReadPaddle(Scanner& scanner, std::string_view, OomMessage& message) {
  if (scanner.Literal("GPU")) {
    if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  } else if (scanner.Literal("CPU")) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kRequest;
  }
  message.cut_off = true;
  if (!scanner.SkipPast("Cannot allocate", 16) || !scanner.Size(message.requested)) return true;
  if (!scanner.SkipPast(",", 32)) return true;
  std::optional<Bytes> size;
  if (scanner.Size(size) && scanner.Literal("memory has been allocated and")) {
    message.allocated = size;
  }
  message.cut_off = !scanner.Literal("available memory is only") || !scanner.Size(message.free);
  return true;
}

/// "Out of memory allocating N bytes (allocated so far: N bytes[, limit set to: N bytes])." of
/// CuPy; JAX begins in the same way and goes on without the parentheses.
bool ReadCupyOrXla(Scanner& scanner, std::string_view before, OomMessage& message) {
  Scanner cupy = scanner;
  if (!cupy.Size(message.requested) || !cupy.Literal("(allocated so far:")) {
    message.requested.reset();
    return ReadXlaAllocation(scanner, before, message);
  }
  scanner = cupy;
  message.source = MessageSource::kCupy;
  message.cut_off = !scanner.Size(message.allocated);
  if (scanner.Literal(", limit set to:")) scanner.Size(message.allowed);
  return true;
}

/// "out of memory to allocate N bytes (total M bytes[, limit set to L bytes])" of older CuPy, where
/// the total has the request in it.
bool ReadOldCupy(Scanner& scanner, std::string_view, OomMessage& message) {
  std::optional<Bytes> total;
  if (!scanner.Size(message.requested)) return scanner.ended();
  if (!scanner.Literal("(total") || !scanner.Size(total)) return true;
  if (total && message.requested && *total >= *message.requested) {
    message.allocated = *total - *message.requested;
  }
  if (scanner.Literal(", limit set to")) scanner.Size(message.allowed);
  return true;
}

/// RMM's "std::bad_alloc: out_of_memory: RMM failure at:…: Maximum pool size exceeded", "…: CUDA
/// error [(failed to allocate N bytes) ]at: …"; without these words it is the host's memory.
bool ReadBadAlloc(Scanner& scanner, std::string_view, OomMessage& message) {
  scanner.Literal(":");
  const bool named = scanner.Literal("out_of_memory");
  scanner.Literal(":");
  if (scanner.Literal("CUDA error")) {
    if (scanner.Literal("(failed to allocate")) scanner.Size(message.requested);
    scanner.SkipPast("cudaErrorMemoryAllocation", 300);
    return true;
  }
  if (scanner.Literal("RMM failure")) {
    if (scanner.SkipPast("Maximum pool size exceeded", 300)) message.subject = "the pool's limit";
    if (scanner.Literal("(failed to allocate")) scanner.Size(message.requested);
    return true;
  }
  if (named) return true;
  message.source = MessageSource::kHostMemory;
  message.host = HostEvent::kRequest;
  return true;
}

/// "Failed to allocate memory for requested buffer of size N".
bool ReadOnnxBuffer(Scanner& scanner, std::string_view, OomMessage& message) {
  message.requested = scanner.Integer();
  message.cut_off = !message.requested;
  return true;
}

/// "Available memory of N is smaller than requested bytes of M".
bool ReadOnnxLimit(Scanner& scanner, std::string_view, OomMessage& message) {
  const std::optional<std::int64_t> available = scanner.Integer();
  if (!available || !scanner.Literal("is smaller than requested bytes of")) return false;
  message.requested = scanner.Integer();
  // What is left below gpu_mem_limit, not on the device.
  message.subject = "the arena's limit";
  message.other = available;
  message.cut_off = !message.requested;
  return true;
}

/// "CUDA failure 2: out of memory ; GPU=0 ; hostname=…".
bool ReadOnnxCuda(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Literal("; GPU=")) return true;
  if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  return true;
}

/// "Requested amount of GPU memory (N bytes) could not be allocated": while an engine is built,
/// TensorRT then skips the tactic and goes on.
bool ReadTensorRtRequest(Scanner& scanner, std::string_view, OomMessage& message) {
  scanner.Literal("GPU");
  if (!scanner.Literal("memory (") || !scanner.Size(message.requested)) return false;
  scanner.Literal(") could not be allocated");
  message.survived = scanner.SkipPast("Skipping tactic", 200);
  message.called_harmless = message.survived;
  return true;
}

/// "Error Code 2: OutOfMemory (Requested size was N bytes.)", "(no further information)".
bool ReadTensorRtError(Scanner& scanner, std::string_view, OomMessage& message) {
  if (scanner.Literal("(Requested size was")) scanner.Size(message.requested);
  return true;
}

/// "Could not allocate tensor with N bytes. There is not enough GPU video memory available!"
bool ReadDirectMl(Scanner& scanner, std::string_view, OomMessage& message) {
  message.cut_off = !scanner.Size(message.requested);
  scanner.Literal(". There is not enough GPU video memory available");
  return !message.cut_off || scanner.ended();
}

/// "[metal::malloc] Attempting to allocate N bytes which is greater than the maximum allowed buffer
/// size of M bytes.", "[malloc_or_wait] Unable to allocate N bytes."
bool ReadMlx(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.AnyOf({"Attempting to allocate", "Unable to allocate"})) return scanner.ended();
  message.cut_off = !scanner.Size(message.requested);
  if (scanner.Literal("which is greater than the maximum allowed buffer size of")) {
    message.subject = "one buffer";
    scanner.Size(message.allowed);
  } else if (scanner.SkipPast("Resource limit", 40)) {
    message.subject = "the number of buffers";
  }
  return true;
}

/// Metal's "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)": PyTorch's
/// where Apple's shaders are named above it, MLX's where MLX is.
bool ReadMetal(Scanner&, std::string_view before, OomMessage& message) {
  if (before.find("Metal Performance Shaders") != std::string_view::npos) {
    message.source = MessageSource::kTorchMps;
  }
  return true;
}

/// "Error out of memory at line 88 in file /…/csrc/ops.cu".
bool ReadBitsandbytes(Scanner& scanner, std::string_view, OomMessage&) {
  scanner.Integer();
  return scanner.Literal("in file") || scanner.ended();
}

/// XGBoost's "Memory allocation error on worker 0: …", and below it "- Free memory: N", "-
/// Requested memory: N".
bool ReadXgboost(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kXgboost;
  scanner.SkipPast("out of memory", 120);
  if (scanner.SkipPast("Free memory:", 24)) message.free = scanner.Integer();
  if (scanner.SkipPast("Requested memory:", 24)) message.requested = scanner.Integer();
  return true;
}

/// CUDA.jl's "Out of GPU memory trying to allocate 2.000 GiB", "Effective GPU memory usage: 99.31%
/// (7.788 GiB/7.842 GiB)".
bool ReadCudaJl(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kCudaJl;
  if (!scanner.Size(message.requested)) return scanner.ended();
  std::optional<Bytes> used;
  if (scanner.SkipPast("Effective GPU memory usage:", 8) && scanner.SkipPast("(", 12) &&
      scanner.Size(used) && scanner.Literal("/") && scanner.Size(message.capacity) && used &&
      message.capacity) {
    message.free = std::max<Bytes>(0, *message.capacity - *used);
  }
  return true;
}

}  // namespace plimsoll
