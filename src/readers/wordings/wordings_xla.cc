// TensorFlow and JAX. XLA prints the largest buffers with the source lines that made them.
#include <algorithm>
#include <array>
#include <charconv>

#include "readers/wordings/wordings.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostBuffers = 64;

struct ElementType {
  std::string_view name;
  Bytes size;
};
constexpr std::array<ElementType, 16> kElementTypes = {{{"float", 4},
                                                        {"double", 8},
                                                        {"half", 2},
                                                        {"bfloat16", 2},
                                                        {"int8", 1},
                                                        {"uint8", 1},
                                                        {"int16", 2},
                                                        {"uint16", 2},
                                                        {"int32", 4},
                                                        {"uint32", 4},
                                                        {"int64", 8},
                                                        {"uint64", 8},
                                                        {"bool", 1},
                                                        {"complex64", 8},
                                                        {"complex128", 16},
                                                        {"float32", 4}}};

/// The bytes of "32,1024,64,64" elements; none where that overflows or the type is unknown.
std::optional<Bytes> BytesOfTensor(std::string_view shape, std::string_view type) {
  Bytes bytes = 0;
  for (const ElementType& element : kElementTypes) {
    if (element.name == type) bytes = element.size;
  }
  if (bytes == 0) return {};
  while (!shape.empty()) {
    Bytes length = 0;
    const auto [p, error] = std::from_chars(shape.data(), shape.data() + shape.size(), length);
    if (error != std::errc() || length < 0 || __builtin_mul_overflow(bytes, length, &bytes)) {
      return {};
    }
    shape.remove_prefix(static_cast<std::size_t>(p - shape.data()));
    if (!shape.empty() && shape.front() == ',') shape.remove_prefix(1);
  }
  return bytes;
}

/// "/home/me/train.py" -> "train.py".
std::string BaseName(const std::string& path) {
  const std::size_t slash = path.find_last_of("/\\");
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

/// "jit(step)/jit(main)/dot_general[dimension_numbers=…]" -> "dot_general".
std::string OperatorName(std::string name) {
  name.resize(std::min(name.size(), name.find('[')));
  return BaseName(name);
}

/// op_name="…" source_file="…" source_line=12, in this order; any may be missing.
void ReadOperator(Scanner& scanner, OomMessage::Buffer& buffer) {
  if (scanner.Literal("op_type=\"")) {
    scanner.Until("\"");
    scanner.Literal("\"");
  }
  if (scanner.Literal("op_name=\"")) {
    buffer.what = OperatorName(scanner.Until("\""));
    scanner.Literal("\"");
  }
  if (scanner.Literal("source_file=\"")) {
    buffer.where = BaseName(scanner.Until("\""));
    scanner.Literal("\"");
  }
  if (scanner.Literal("source_line=")) {
    if (auto line = scanner.Integer()) buffer.where += ":" + std::to_string(*line);
  }
}

/// "Buffer 1: Size: 3.24GiB Operator: … XLA Label: fusion Shape: f32[128,2605] ======"
bool ReadBuffer(Scanner& scanner, OomMessage& message) {
  OomMessage::Buffer buffer;
  if (!scanner.Literal("Buffer") || !scanner.Integer() || !scanner.Literal(":")) return false;
  if (!scanner.Literal("Size:") || !scanner.Size(buffer.size)) return false;
  bool labelled = false;
  if (scanner.Literal("Operator:")) {
    ReadOperator(scanner, buffer);
    labelled = scanner.SkipPast("XLA Label:", 256);
  }
  if (labelled || scanner.Literal("XLA Label:")) {
    const std::string label = scanner.Until("S=", 64);  // "Shape:" follows
    if (buffer.what.empty()) buffer.what = label;
  }
  std::string shape;
  if (scanner.Literal("Shape:")) {
    shape = scanner.Until("=", 256);
  } else if (scanner.Literal("Entry Parameter Subshape:")) {
    buffer.what = "parameter";
    shape = scanner.Until("=", 256);
  }
  if (!shape.empty()) buffer.what += (buffer.what.empty() ? "" : " ") + shape;
  while (scanner.Literal("=")) {
  }
  if (message.buffers.size() < kMostBuffers) message.buffers.push_back(std::move(buffer));
  return true;
}

/// "BufferAssignment OOM Debugging." with the totals, and the list of the largest buffers.
void ReadBufferAssignment(Scanner& scanner, OomMessage& message) {
  constexpr std::size_t kReach = 600;
  if (!scanner.Literal("BufferAssignment OOM Debugging.")) return;
  if (scanner.SkipPast("total allocation:", kReach)) scanner.Size(message.other);
  if (!scanner.SkipPast("Peak buffers:", kReach)) {
    message.cut_off = scanner.ended();
    return;
  }
  while (ReadBuffer(scanner, message)) {
  }
}

/// "Unpadded size: 1.00G Extra memory due to padding: 31.00G (32.0x expansion)".
void ReadPadding(Scanner& scanner, OomMessage::Buffer& buffer) {
  std::optional<Bytes> unpadded;
  if (!scanner.Literal("Unpadded size:") || !scanner.Size(unpadded)) return;
  if (scanner.Literal("Extra memory due to padding:")) scanner.Size(buffer.padding);
  if (scanner.Literal("(")) scanner.SkipPast(")", 24);
}

/// "1. Size: 32.00G Operator: … Shape: s32[8388608,8,4]{…} Unpadded size: … XLA label: … Allocation
/// type: HLO temp ====": a TPU's list of the largest.
bool ReadProgramAllocation(Scanner& scanner, OomMessage& message) {
  OomMessage::Buffer buffer;
  if (!scanner.Integer() || !scanner.Literal(".") || !scanner.Literal("Size:")) return false;
  if (!scanner.Size(buffer.size)) return false;
  if (scanner.Literal("Operator:")) ReadOperator(scanner, buffer);
  if (scanner.Literal("Shape:")) {
    buffer.what += (buffer.what.empty() ? "" : " ") + scanner.Until("{U=", 128);
    if (scanner.Literal("{")) scanner.SkipPast("}", 128);
  }
  ReadPadding(scanner, buffer);
  if (!scanner.SkipPast("=====", 2000)) return false;
  while (scanner.Literal("=")) {
  }
  if (message.buffers.size() < kMostBuffers) message.buffers.push_back(std::move(buffer));
  return true;
}

/// "There are 1.90G free, 0B reserved": what an accelerator without a caching allocator says.
void ReadFree(Scanner& scanner, OomMessage& message) {
  if (scanner.SkipPast("There are", 80)) scanner.Size(message.free);
}

}  // namespace

/// "with shape[32,1024,64,64] and type float on /job:localhost/…/device:GPU:0 by allocator
/// GPU_0_bfc"
bool ReadTensorFlowTensor(Scanner& scanner, std::string_view, OomMessage& message) {
  message.cut_off = true;
  if (!scanner.Literal("with shape") && !scanner.Literal("of shape")) return scanner.ended();
  if (!scanner.Literal("[")) return scanner.ended();
  const std::string shape = scanner.Until("]", 128);
  message.subject = "tensor [" + shape + "]";
  if (!scanner.Literal("] and type")) return true;
  std::string type = scanner.Until("/", 16);
  if (!type.ends_with("on")) return true;
  type.resize(type.size() - 2);
  message.subject += " of type " + type;
  message.requested = BytesOfTensor(shape, type);
  if (!scanner.SkipPast("device:", 64)) return true;
  if (scanner.AnyOf({"GPU:", "DML:", "TPU:", "XPU:"})) {
    if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  } else if (scanner.Literal("CPU:")) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kRequest;
  }
  message.cut_off = !scanner.SkipPast("by allocator", 16);
  return true;
}

/// "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.25GiB with freed_by_count=0. The
/// caller indicates that this is not a failure, …": without this sentence it is one.
bool ReadBfcAllocator(Scanner& scanner, std::string_view before, OomMessage& message) {
  if (!scanner.Size(message.requested)) {
    message.cut_off = scanner.ended();
    return scanner.ended();
  }
  const std::size_t gpu = before.rfind("(GPU_");
  if (gpu != std::string_view::npos) {
    int device = 0;
    const char* end = before.data() + before.size();
    if (std::from_chars(before.data() + gpu + 5, end, device).ec == std::errc()) {
      message.device = device;
    }
  }
  if (before.find("(cuda_host_bfc)") != std::string_view::npos ||
      before.find("(gpu_host_bfc)") != std::string_view::npos) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kPinned;
  }
  if (scanner.Literal("with freed_by_count=")) scanner.Integer();
  message.survived = scanner.Literal(". The caller indicates that this is not a failure");
  message.called_harmless = message.survived;
  return true;
}

/// The allocator's "Stats: Limit: N InUse: N MaxInUse: N NumAllocs: N MaxAllocSize: N", which
/// belongs to the refusal above it.
bool ReadBfcStats(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Literal("Limit:")) return false;
  const std::optional<std::int64_t> limit = scanner.Integer();
  if (!limit || !scanner.Literal("InUse:")) return false;
  message.allowed = limit;
  message.allocated = scanner.Integer();
  return message.allocated.has_value();
}

/// "failed to allocate 2.20G (2362232064 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY": TensorFlow
/// and JAX then ask for less. "failed to allocate memory" alone is TensorFlow's end.
bool ReadStreamExecutor(Scanner& scanner, std::string_view before, OomMessage& message) {
  if (scanner.Literal("memory")) return before.find("ResourceExhausted") != std::string_view::npos;
  if (!scanner.Size(message.requested)) return false;
  if (scanner.Literal("(")) {
    std::optional<Bytes> exact;
    if (scanner.Size(exact) && exact) message.requested = exact;
    scanner.Literal(")");
  }
  message.survived = true;
  // ggml's warning: it goes on with ordinary memory of the host.
  if (scanner.Literal("of pinned memory")) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kPinned;
    return true;
  }
  return scanner.AnyOf({"from device: CUDA_ERROR_OUT_OF_MEMORY",
                        "from device: HIP_ERROR_OutOfMemory", "from device: RESOURCE_EXHAUSTED",
                        "from device: INTERNAL"});
}

/// "RESOURCE_EXHAUSTED: …", in the many ways in which XLA goes on.
bool ReadResourceExhausted(Scanner& scanner, std::string_view before, OomMessage& message) {
  for (std::string_view opening :
       {"Out of memory while trying to allocate", "Out of memory allocating",
        "Failed to allocate request for", "Error allocating device buffer: Attempting to allocate",
        "Attempting to allocate", "Attempting to reserve"}) {
    if (scanner.Literal(opening)) return ReadXlaAllocation(scanner, before, message);
  }
  // "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.93G of 15.48G
  // hbm. Exceeded hbm capacity by 5.45G."
  if (!scanner.SkipPast("Used", 120)) {
    message.cut_off = scanner.ended();
    return message.cut_off;
  }
  message.signs.tpu = true;
  message.cut_off =
      !scanner.Size(message.other) || !scanner.Literal("of") || !scanner.Size(message.capacity);
  if (message.cut_off) return true;
  if (scanner.SkipPast("Exceeded hbm capacity by", 16)) {
    std::optional<Bytes> excess;
    scanner.Size(excess);
  }
  if (scanner.SkipPast("Largest program allocations in", 900)) {
    scanner.SkipPast(":", 12);
    while (ReadProgramAllocation(scanner, message)) {
    }
  }
  return true;
}

/// "6291456 bytes.", "154.06GiB (165425291480B) on device ordinal 0", "2.20G at the bottom of
/// memory. That was not possible. There are 1.90G free", and behind it the buffers.
bool ReadXlaAllocation(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Size(message.requested)) {
    message.cut_off = scanner.ended();
    return message.cut_off;
  }
  if (scanner.Literal("(")) {
    std::optional<Bytes> exact;
    if (scanner.Size(exact) && exact) message.requested = exact;
    scanner.Literal(")");
  }
  if (scanner.Literal("on CPU_")) {
    scanner.Integer();
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kRequest;
  } else if (scanner.Literal("on device ordinal")) {
    if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  }
  scanner.Literal(".");
  if (scanner.Literal("at the bottom of memory.") || scanner.Literal("That was not possible.")) {
    message.signs.tpu = true;  // GPUs have an allocator that says other words
    ReadFree(scanner, message);
  }
  ReadBufferAssignment(scanner, message);
  return true;
}

}  // namespace plimsoll
