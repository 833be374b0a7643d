// The texts of PyTorch's allocators. S is "15.78 GiB", always with two decimals, or "12 bytes".
#include <array>

#include "readers/error_text/releases.h"
#include "readers/error_text/wordings.h"

namespace plimsoll {
namespace {

/// The exception's class changed with the releases: RuntimeError, torch.cuda.OutOfMemoryError from
/// 1.13 on, torch.OutOfMemoryError from 2.4 on.
Releases ReleasesOfClass(std::string_view before) {
  constexpr std::size_t kReach = 48;
  if (before.size() > kReach) before.remove_prefix(before.size() - kReach);
  Releases releases;
  if (before.find("torch.cuda.OutOfMemoryError") != std::string_view::npos) {
    releases.Narrow(113, 203);
  } else if (before.find("torch.OutOfMemoryError") != std::string_view::npos) {
    releases.Narrow(204, Releases::kNewest);
  } else if (before.find("RuntimeError:") != std::string_view::npos) {
    releases.Narrow(100, 112);
  }
  return releases;
}

struct OldLabel {
  std::string_view text;
  std::optional<Bytes> OomMessage::*field;
  int first;
  int last;
};
constexpr std::array<OldLabel, 6> kOldLabels = {{
    {"total capacity", &OomMessage::capacity, 100, 205},
    {"already allocated", &OomMessage::allocated, 100, 205},
    {"free", &OomMessage::free, 100, 200},
    {"cached", &OomMessage::reserved_free, 100, 103},
    {"reserved in total by PyTorch", &OomMessage::reserved, 104, 205},
    {"allowed", &OomMessage::allowed, 108, 200},
}};

/// "(GPU D; S total capacity; S already allocated; S free; S reserved in total by PyTorch)", and
/// from 1.10 on a hint behind it. PyTorch 1.0 to 2.0; XPU until 2.5.
void ReadInParentheses(Scanner& scanner, OomMessage& message, Releases releases) {
  if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  releases.Narrow(100, message.source == MessageSource::kTorchXpu ? 205 : 200);
  while (scanner.Literal(";")) {
    std::optional<Bytes> size;
    if (!scanner.Size(size)) break;
    for (const OldLabel& label : kOldLabels) {
      if (!scanner.Literal(label.text)) continue;
      message.*label.field = size;
      releases.Narrow(label.first, label.last);
      break;
    }
  }
  message.cut_off = !scanner.Literal(")");
  if (scanner.Literal("If reserved memory is >> allocated memory")) {
    releases.Narrow(110, 200);
    scanner.Literal(
        "try setting max_split_size_mb to avoid fragmentation. See documentation for Memory "
        "Management and PYTORCH_CUDA_ALLOC_CONF");
  } else if (!message.cut_off && !scanner.Literal("If")) {
    releases.Narrow(100, message.source == MessageSource::kTorchXpu ? 205 : 109);
  }
  message.wording = releases.ToString();
}

/// "Including non-PyTorch memory, this process has S memory in use." or "Process 1234 has S memory
/// in use.", one for each process on the device.
bool ReadProcess(Scanner& scanner, OomMessage& message) {
  ProcessUse process;
  if (!scanner.Literal("Including non-PyTorch memory, this process has")) {
    if (!scanner.Literal("Process")) return false;
    process.pid = scanner.Integer();
    if (!process.pid || !scanner.Literal("has")) return false;
  }
  if (!scanner.Size(process.bytes)) return false;
  message.processes.push_back(process);
  scanner.Literal("memory in use");
  scanner.Literal(".");
  return true;
}

/// "Of the allocated memory S is allocated by PyTorch, [with S allocated in private pools (e.g.,
/// CUDA Graphs), ]and S is reserved by PyTorch but unallocated."
bool ReadAllocated(Scanner& scanner, OomMessage& message, Releases& releases) {
  std::optional<Bytes> size;
  if (!scanner.Literal("Of the allocated memory") || !scanner.Size(size)) return false;
  message.allocated = size;
  if (!scanner.Literal("is allocated by PyTorch")) return false;
  scanner.Literal(",");
  if (scanner.Literal("with")) {
    if (!scanner.Size(message.private_pools)) return false;
    releases.Narrow(204, Releases::kNewest);
    scanner.Literal("allocated in private pools (e.g., CUDA Graphs)");
    scanner.Literal(",");
  }
  size.reset();
  if (!scanner.Literal("and") || !scanner.Size(size)) return false;
  message.reserved_free = size;
  const bool whole = scanner.Literal("is reserved by PyTorch but unallocated");
  scanner.Literal(".");
  return whole;
}

/// What the hint recommends, and where it sends the reader.
void ReadHint(Scanner& scanner, Releases& releases) {
  if (scanner.Literal("Please use `empty_cache` to release all unoccupied cached memory")) {
    releases.Narrow(206, Releases::kNewest);
  }
  if (!scanner.Literal("If reserved but unallocated memory is large try setting")) return;
  if (scanner.Literal("max_split_size_mb to avoid fragmentation.")) {
    releases.Narrow(201, 201);
    scanner.Literal("See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF");
    return;
  }
  if (scanner.Literal("PYTORCH_ALLOC_CONF=")) {
    releases.Narrow(210, 210);
  } else if (scanner.Literal("PYTORCH_CUDA_ALLOC_CONF=")) {
    releases.Narrow(202, Releases::kNewest);
  } else if (!scanner.Literal("PYTORCH_HIP_ALLOC_CONF=")) {
    return;
  }
  scanner.Literal("expandable_segments:True to avoid fragmentation.");
  scanner.Literal("See documentation for Memory Management");
  if (!scanner.Literal("(https://")) return;
  if (scanner.Literal("pytorch.org/docs/stable/notes/cuda.html#environment-variables")) {
    releases.Narrow(202, 210);
  } else if (scanner.Literal("docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory")) {
    releases.Narrow(211, Releases::kNewest);
  }
}

/// "GPU D has a total capacity of S of which S is free. " and sentences about the processes, the
/// limit and the allocator. PyTorch 2.1 and newer.
void ReadInSentences(Scanner& scanner, OomMessage& message, Releases releases) {
  releases.Narrow(201, Releases::kNewest);
  message.cut_off = true;
  if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  if (scanner.Literal("has a total capacty of")) {  // so misspelled in 2.1
    releases.Narrow(201, 201);
  } else if (scanner.Literal("has a total capacity of")) {
    releases.Narrow(202, Releases::kNewest);
  }
  if (scanner.Size(message.capacity) && scanner.Literal("of which") && scanner.Size(message.free)) {
    scanner.Literal("is free");
    scanner.Literal(".");
  }
  while (ReadProcess(scanner, message)) {
  }
  std::optional<Bytes> allowed;
  if (scanner.Size(allowed) && scanner.Literal("allowed;")) {
    message.allowed = allowed;
    releases.Narrow(205, Releases::kNewest);
  }
  message.cut_off = !ReadAllocated(scanner, message, releases);
  if (!message.cut_off) ReadHint(scanner, releases);
  message.wording = releases.ToString();
}

/// "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit.
/// Requested size: S"
bool ReadRejection(Scanner& scanner, OomMessage& message) {
  message.source = MessageSource::kTorchRejected;
  message.wording = "PyTorch 2.12 or newer";
  scanner.Literal("because it would exceed per_process_memory_fraction limit.");
  message.cut_off = !scanner.Literal("Requested size:") || !scanner.Size(message.requested);
  return true;
}

}  // namespace

bool ReadTorch(Scanner& scanner, std::string_view before, OomMessage& message) {
  const Releases releases = ReleasesOfClass(before);
  scanner.Literal(".");
  if (scanner.Literal("Allocation was preemptively rejected")) {
    return ReadRejection(scanner, message);
  }
  if (!scanner.Literal("Tried to allocate")) {
    message.cut_off = scanner.ended();
    return true;
  }
  if (scanner.Literal("more than 1EB memory")) {
    message.source = MessageSource::kTorchAbsurd;
    return true;
  }
  message.cut_off = true;
  if (!scanner.Size(message.requested)) return true;
  message.wording = releases.ToString();
  if (scanner.Literal("(GPU")) {
    ReadInParentheses(scanner, message, releases);
  } else if (scanner.Literal(".") && scanner.Literal("GPU")) {
    ReadInSentences(scanner, message, releases);
  }
  return true;
}

/// The log's line for the same event: "requested S but total_allocated_memory (S) + requested size
/// would exceed memory limit (S = P% of S)". What it calls allocated is what is reserved.
bool ReadTorchRejectedWarning(Scanner& scanner, std::string_view, OomMessage& message) {
  message.wording = "PyTorch 2.12 or newer";
  message.cut_off = true;
  if (!scanner.Literal("requested")) return true;
  if (!scanner.Size(message.requested)) return true;
  if (!scanner.Literal("but total_allocated_memory (")) return true;
  if (!scanner.Size(message.reserved)) return true;
  if (!scanner.Literal(") + requested size would exceed memory limit (")) return true;
  if (!scanner.Size(message.allowed)) return true;
  if (!scanner.SkipPast("% of", 16)) return true;
  message.cut_off = !scanner.Size(message.capacity);
  return true;
}

/// "Allocation on device D would exceed allowed memory. (out of memory)" and one line a figure. A
/// limit that nobody set is printed as 17179869184.00 GiB.
bool ReadTorchAsync(Scanner& scanner, std::string_view, OomMessage& message) {
  const std::optional<std::int64_t> device = scanner.Integer();
  if (!device || !scanner.Literal("would exceed allowed memory")) return false;
  message.device = static_cast<int>(*device & 0xffff);
  scanner.Literal(". (out of memory)");
  message.cut_off = true;
  if (!scanner.Literal("Currently allocated :") || !scanner.Size(message.allocated)) return true;
  if (!scanner.Literal("Requested :") || !scanner.Size(message.requested)) return true;
  if (!scanner.Literal("Device limit :") || !scanner.Size(message.capacity)) return true;
  if (!scanner.Literal("Free (according to CUDA):") || !scanner.Size(message.free)) return true;
  if (!scanner.Literal("PyTorch limit (set by user-supplied memory fraction) :")) return true;
  message.cut_off = !scanner.Size(message.allowed);
  return true;
}

/// "(MPS allocated: S, other allocations: S, max allowed: S). Tried to allocate S on shared pool."
bool ReadTorchMps(Scanner& scanner, std::string_view, OomMessage& message) {
  message.cut_off = true;
  if (!scanner.Literal("(MPS allocated:") || !scanner.Size(message.allocated)) {
    message.cut_off = scanner.ended();
    return true;
  }
  if (!scanner.Literal(", other allocations:") || !scanner.Size(message.other)) return true;
  if (!scanner.Literal(", max allowed:") || !scanner.Size(message.allowed)) return true;
  if (!scanner.Literal(").") || !scanner.Literal("Tried to allocate")) return true;
  if (!scanner.Size(message.requested)) return true;
  message.cut_off = false;
  if (scanner.Literal("on shared pool")) message.subject = "shared pool";
  if (scanner.Literal("on private pool")) message.subject = "private pool";
  return true;
}

/// "[ExpandableSegmentVA] Failed to reserve 90.00 GiB of virtual address space"
bool ReadVirtualAddress(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Literal("Failed to reserve")) return scanner.ended();
  message.wording = "PyTorch 2.14 or newer";
  message.cut_off = !scanner.Size(message.requested);
  return true;
}

}  // namespace plimsoll
