// Requests for the host's memory that failed. They are taken for GPU problems often enough.
#include <cctype>

#include "readers/wordings/wordings.h"

namespace plimsoll {

/// "can't allocate memory: you tried to allocate N bytes. Error code 12 (Cannot allocate memory)";
/// on Windows "not enough memory: you tried to allocate N bytes."
bool ReadCpuAllocator(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRequest;
  const bool not_enough = scanner.Literal("not enough memory");
  if (!scanner.SkipPast("you tried to allocate", 48)) {
    message.cut_off = scanner.ended();
    return not_enough || message.cut_off || scanner.SkipPast("memory", 48);
  }
  message.cut_off = !scanner.Size(message.requested);
  // Releases of old said so everywhere, and added a joke.
  message.signs.windows = not_enough && !message.cut_off && !scanner.Literal(". Buy new RAM");
  scanner.Literal(". Error code 12 (Cannot allocate memory)");
  return true;
}

/// "posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0" of older releases.
bool ReadPosixMemalign(Scanner&, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRequest;
  return true;
}

/// "Unable to allocate 3.00 GiB for an array with shape (402653184,) and data type float64"
bool ReadNumpy(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Size(message.requested) || !scanner.Literal("for an array")) return false;
  message.host = HostEvent::kRequest;
  if (scanner.Literal("with shape")) message.subject = scanner.Until(")", 64) + ")";
  return true;
}

/// "[Errno 12] Cannot allocate memory", "fork: Cannot allocate memory"; but not Intel's "can NOT
/// allocate memory block".
bool ReadErrno(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRequest;
  return !scanner.Literal("block");
}

/// Python's own "MemoryError", alone on its line.
bool ReadMemoryError(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kRequest;
  const bool inside = !before.empty() && (std::isalnum(static_cast<unsigned char>(before.back())) ||
                                          before.back() == '_' || before.back() == '.');
  return !inside && scanner.AtLineEnd();
}

/// "[WinError 1455] The paging file is too small for this operation to complete".
bool ReadPageFile(Scanner&, std::string_view, OomMessage& message) {
  message.host = HostEvent::kPageFile;
  message.signs.windows = true;
  return true;
}

/// "unable to allocate shared memory(shm) for file </torch_42>: …", "unable to mmap N bytes from
/// file </torch_42>: Cannot allocate memory (12)", "… insufficient shared memory (shm)".
bool ReadSharedMemory(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  if (!scanner.Size(message.requested)) message.requested.reset();
  return true;
}

/// "unable to mmap N bytes from file </torch_42>": other files than PyTorch's own are not memory.
bool ReadSharedMap(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  const bool ours = scanner.Size(message.requested) &&
                    scanner.AnyOf({"from file </torch_", "from file </dev/shm/torch_"});
  if (ours) scanner.SkipPast("Cannot allocate memory (12)", 64);
  return ours;
}

/// "unable to write to file </torch_42>: No space left on device (28)", "unable to open shared
/// memory object </torch_42> in read-write mode: No space left on device (28)".
bool ReadSharedFile(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  return scanner.Literal("</torch_") && (scanner.SkipPast("No space left on device", 80) ||
                                         scanner.SkipPast("Cannot allocate memory", 80));
}

/// "could not allocate pinned host memory of size: N".
bool ReadPinnedHost(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kPinned;
  scanner.Literal(":");
  if (!scanner.Size(message.requested)) message.requested = scanner.Integer();
  return true;
}

/// TensorFlow's "failed to alloc N bytes on host: CUDA_ERROR_OUT_OF_MEMORY".
bool ReadAllocOnHost(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kPinned;
  if (!scanner.Size(message.requested) || !scanner.Literal("on host")) return false;
  scanner.Literal(": CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  return true;
}

/// "cudaErrorAlreadyMapped", where memory was being pinned: Windows has no more of it. Elsewhere
/// the same error is one of graphics.
bool ReadAlreadyMapped(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kPinned;
  message.subject = "already mapped";
  const auto pins = [](std::string_view text) {
    for (const std::string_view word : {"HostRegister", "HostAlloc", "MallocHost", "pin_memory",
                                        "pinned", "pinning", "Pinned", "Pinning"}) {
      if (text.find(word) != std::string_view::npos) return true;
    }
    return false;
  };
  return pins(before) || pins(scanner.Ahead(200));
}

/// The kernel's "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]
/// (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359".
bool ReadDriverMemory(Scanner& scanner, std::string_view before, OomMessage& message) {
  if (before.rfind("NVRM") == std::string_view::npos) return false;
  message.host = HostEvent::kDriver;
  if (scanner.SkipPast("returned from", 24)) message.subject = scanner.Until("(@\n", 64);
  return true;
}

/// "unable to write to file </torch_42>", with or without the reason behind it.
bool ReadSharedWrite(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  if (!scanner.Literal("</torch_")) return false;
  scanner.SkipPast("No space left on device", 80);
  return true;
}

/// "java.lang.OutOfMemoryError: Java heap space"; threads that cannot be made are no matter of the
/// heap.
bool ReadJavaHeap(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kJavaHeap;
  return !scanner.Literal(": unable to create");
}

/// "NCCL WARN Call to posix_fallocate failed : No space left on device".
bool ReadNcclShared(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  message.subject = "NCCL";
  return scanner.SkipPast("No space left on device", 8);
}

/// "Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888)".
bool ReadNcclSegment(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  message.subject = "NCCL";
  if (scanner.SkipPast("(size", 24)) message.requested = scanner.Integer();
  return true;
}

}  // namespace plimsoll
