// The texts of PyTorch's allocators. S is "15.78 GiB", always with two decimals, or "12 bytes".
#include <algorithm>
#include <array>
#include <charconv>

#include "readers/wordings/wordings.h"

namespace plimsoll {
namespace {

/// The exception's class changed with the releases: RuntimeError, torch.cuda.OutOfMemoryError from
/// 1.13 on, torch.OutOfMemoryError from 2.4 on.
TorchVersions VersionsOfClass(std::string_view before) {
  constexpr std::size_t kReach = 48;
  if (before.size() > kReach) before.remove_prefix(before.size() - kReach);
  TorchVersions versions;
  if (before.find("torch.cuda.OutOfMemoryError") != std::string_view::npos) {
    versions.Narrow(113, 203);
  } else if (before.find("torch.OutOfMemoryError") != std::string_view::npos) {
    versions.Narrow(204, TorchVersions::kNewest);
  } else if (before.find("RuntimeError:") != std::string_view::npos) {
    versions.Narrow(100, 112);
  }
  return versions;
}

/// A size and the words behind it.
struct Label {
  std::string_view text;
  std::optional<Bytes> OomMessage::*field;
  int first;
  int last;
};
constexpr std::array<Label, 7> kOldLabels = {{
    {"total capacity", &OomMessage::capacity, 100, 205},
    {"already allocated", &OomMessage::allocated, 100, 205},
    {"current active", &OomMessage::active, 100, TorchVersions::kNewest},
    {"free", &OomMessage::free, 100, 200},
    {"cached", &OomMessage::reserved_free, 100, 103},
    {"reserved in total by PyTorch", &OomMessage::reserved, 104, 205},
    {"allowed", &OomMessage::allowed, 108, 200},
}};

/// Other makers took over the text of 1.x or of 2.x and print it in all their releases.
bool FollowsVersions(MessageSource source) {
  return source == MessageSource::kTorchCuda || source == MessageSource::kTorchHip ||
         source == MessageSource::kTorchXpu;
}

void SetVersions(OomMessage& message, const TorchVersions& versions) {
  if (FollowsVersions(message.source)) message.torch = versions;
}

/// "(GPU D; S total capacity; S already allocated; S free; S reserved in total by PyTorch)", and
/// from 1.10 on a hint behind it. PyTorch 1.0 to 2.0; XPU until 2.5; NPU always, with more clauses.
void ReadInParentheses(Scanner& scanner, OomMessage& message, TorchVersions versions) {
  if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  const bool xpu = message.source == MessageSource::kTorchXpu;
  versions.Narrow(100, xpu ? 205 : 200);
  bool elided = false;
  while (scanner.Literal(";")) {
    std::optional<Bytes> size;
    if (!scanner.Size(size)) {
      elided = true;
      scanner.Until(";)", 80);
      continue;
    }
    bool known = false;
    for (const Label& label : kOldLabels) {
      if (!scanner.Literal(label.text)) continue;
      message.*label.field = size;
      versions.Narrow(label.first, label.last);
      known = true;
      break;
    }
    if (!known) scanner.Until(";)", 80);
  }
  message.cut_off = !scanner.Literal(")") || elided;
  scanner.Literal(".");
  if (scanner.Literal("If reserved memory is >> allocated memory")) {
    versions.Narrow(110, 200);
    scanner.Literal(
        "try setting max_split_size_mb to avoid fragmentation. See documentation for Memory "
        "Management and PYTORCH_CUDA_ALLOC_CONF");
  } else if (!message.cut_off && !scanner.Literal("If")) {
    versions.Narrow(100, xpu ? 205 : 109);
  }
  SetVersions(message, versions);
}

/// "Including non-PyTorch memory, this process has S memory in use." or "Process 1234 has S memory
/// in use.", one for each process on the device.
bool ReadProcess(Scanner& scanner, OomMessage& message) {
  ProcessUse process;
  scanner.Literal("Including non-PyTorch memory,");
  if (!scanner.Literal("this process has")) {
    if (!scanner.Literal("Process")) return false;
    process.pid = scanner.Integer();
    if (!process.pid || !scanner.Literal("has")) return false;
  } else if (std::ranges::any_of(message.processes, [](const auto& p) { return !p.pid; })) {
    return false;  // the words of another message
  }
  if (!scanner.Size(process.bytes)) return false;
  message.processes.push_back(process);
  scanner.Literal("memory in use");
  return true;
}

constexpr std::array<Label, 6> kLabels = {{
    {"is free", &OomMessage::free, 201, TorchVersions::kNewest},
    {"allowed", &OomMessage::allowed, 205, TorchVersions::kNewest},
    {"is allocated by PyTorch", &OomMessage::allocated, 201, TorchVersions::kNewest},
    {"allocated in private pools", &OomMessage::private_pools, 204, TorchVersions::kNewest},
    {"is reserved by PyTorch but unallocated", &OomMessage::reserved_free, 201,
     TorchVersions::kNewest},
    {"is reserved by PyTorch", &OomMessage::reserved, 201, TorchVersions::kNewest},
}};

/// One figure with its words; what PyTorch may add between the parts is passed over.
bool ReadClause(Scanner& scanner, OomMessage& message, TorchVersions& versions) {
  while (scanner.AnyOf({".", ",", ";", "of which", "and", "with", "Of the allocated memory"})) {
  }
  if (ReadProcess(scanner, message)) return true;
  std::optional<Bytes> size;
  if (!scanner.Size(size)) return false;
  for (const Label& label : kLabels) {
    if (!scanner.Literal(label.text)) continue;
    message.*label.field = size;
    versions.Narrow(label.first, label.last);
    // "(e.g., CUDA Graphs)", on AMD "(e.g., HIP Graphs)".
    if (scanner.Literal("(e.g.,")) scanner.SkipPast(")", 32);
    return true;
  }
  return false;
}

/// A figure, "Process 12 has", "Including non-PyTorch memory", "this process has".
bool MayBeginClause(const Scanner& scanner) {
  const std::string_view ahead = scanner.Ahead(16);
  const std::size_t next = ahead.find_first_not_of(" \t");
  if (next == std::string_view::npos) return true;
  // Behind a line's end there may be a prefix.
  return std::string_view("0123456789PIt\r\n").find(ahead[next]) != std::string_view::npos;
}

/// Goes on behind what somebody left out of the middle: "GPU 0 has a total capacity of 79.15 GiB
/// ... Of the allocated memory 70.10 GiB is allocated by PyTorch".
bool SkipElision(Scanner& scanner, const OomMessage& message) {
  constexpr std::size_t kReach = 600;
  const std::string_view ahead = scanner.Ahead(kReach);
  const bool more = ahead.find("by PyTorch") != std::string_view::npos ||
                    ahead.find("memory in use") != std::string_view::npos ||
                    ahead.find("is free") != std::string_view::npos;
  if (message.reserved_free || !more) return false;
  Scanner probe = scanner;
  for (std::size_t i = 0; i < kReach; ++i) {
    // Another message begins, or the traceback of another process.
    if (probe.Literal("out of memory") || probe.Literal("Traceback (most")) return false;
    if (MayBeginClause(probe)) {
      Scanner clause = probe;
      OomMessage found = message;
      TorchVersions versions;
      if (ReadClause(clause, found, versions)) {
        scanner = probe;
        return true;
      }
    }
    if (!probe.Skip()) return false;
  }
  return false;
}

/// What the hint recommends, and where it sends the reader. True where it was left out although the
/// message is whole.
bool ReadHint(Scanner& scanner, TorchVersions& versions) {
  if (scanner.Literal("Please use `empty_cache` to release all unoccupied cached memory")) {
    versions.Narrow(206, TorchVersions::kNewest);
  }
  if (!scanner.Literal("If reserved but unallocated memory is large try setting")) {
    // The reference stands there and the hint in front of it does not: it would be of no use.
    return scanner.Literal("See documentation for Memory Management");
  }
  if (scanner.Literal("max_split_size_mb to avoid fragmentation.")) {
    versions.Narrow(201, 201);
    scanner.Literal("See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF");
    return false;
  }
  if (scanner.Literal("PYTORCH_ALLOC_CONF=")) {
    versions.Narrow(210, 210);
  } else if (scanner.Literal("PYTORCH_CUDA_ALLOC_CONF=")) {
    versions.Narrow(202, TorchVersions::kNewest);
  } else if (!scanner.Literal("PYTORCH_HIP_ALLOC_CONF=")) {
    return false;
  }
  scanner.Literal("expandable_segments:True to avoid fragmentation.");
  scanner.Literal("See documentation for Memory Management");
  if (!scanner.Literal("(https://")) return false;
  if (scanner.Literal("pytorch.org/docs/stable/notes/cuda.html#environment-variables")) {
    versions.Narrow(202, 210);
  } else if (scanner.Literal("docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory")) {
    versions.Narrow(211, TorchVersions::kNewest);
  }
  return false;
}

/// The figures with their words, and the hint behind them.
void ReadSentences(Scanner& scanner, OomMessage& message, TorchVersions versions) {
  while (ReadClause(scanner, message, versions) || SkipElision(scanner, message)) {
  }
  message.cut_off = !message.reserved_free;
  const bool whole = !message.cut_off;
  message.expandable_on = ReadHint(scanner, versions) && whole;
  SetVersions(message, versions);
}

/// "GPU D has a total capacity of S of which S is free. " and sentences about the processes, the
/// limit and the allocator. PyTorch 2.1 and newer.
void ReadInSentences(Scanner& scanner, OomMessage& message, TorchVersions versions) {
  versions.Narrow(201, TorchVersions::kNewest);
  if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  if (scanner.Literal("has a total capacty of")) {  // so misspelled in 2.1
    versions.Narrow(201, 201);
  } else if (scanner.Literal("has a total capacity of")) {
    versions.Narrow(202, TorchVersions::kNewest);
  }
  scanner.Size(message.capacity);
  ReadSentences(scanner, message, versions);
}

/// "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit.
/// Requested size: S"
bool ReadRejection(Scanner& scanner, OomMessage& message) {
  message.source = MessageSource::kTorchRejected;
  message.torch = TorchVersions{.first = 212};
  scanner.Literal("because it would exceed per_process_memory_fraction limit.");
  message.cut_off = !scanner.Literal("Requested size:") || !scanner.Size(message.requested);
  return true;
}

/// "2" in "Device:2, RankID:2".
std::optional<int> ValueBehind(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return {};
  int value = 0;
  const char* const begin = line.data() + at + key.size();
  const auto [p, error] = std::from_chars(begin, line.data() + line.size(), value);
  return error == std::errc() && value >= 0 && value < 1'000'000 ? std::optional(value)
                                                                 : std::nullopt;
}

/// Either form, for whatever the device is called.
bool ReadFigures(Scanner& scanner, OomMessage& message, TorchVersions versions) {
  SetVersions(message, versions);
  const bool parentheses = scanner.Literal("(");
  if (!parentheses) scanner.Literal(".");
  if (scanner.Literal("NPU")) {
    message.source = MessageSource::kTorchNpu;
    message.torch.reset();
  } else if (!scanner.AnyOf({"GPU", "XPU", "MUSA", "MLU", "device"})) {
    // What is left behind an elision has the words of 2.1 and newer, or tells nothing.
    if (parentheses || !SkipElision(scanner, message)) return false;
    ReadSentences(scanner, message, versions);
    return true;
  }
  if (parentheses) {
    ReadInParentheses(scanner, message, versions);
  } else {
    ReadInSentences(scanner, message, versions);
  }
  return true;
}

}  // namespace

bool ReadTorch(Scanner& scanner, std::string_view before, OomMessage& message) {
  const TorchVersions versions = VersionsOfClass(before);
  scanner.Literal(".");
  if (scanner.Literal("Allocation was preemptively rejected")) {
    return ReadRejection(scanner, message);
  }
  // vLLM's own sentence about the same: its hint names the settings.
  if (scanner.Literal("occurred when warming up")) {
    message.program = Program::kVllm;
    message.subject = "the warm-up";
    return true;
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
  if (scanner.Size(message.requested)) ReadFigures(scanner, message, versions);
  return true;
}

/// The same where the paste begins behind "CUDA out of memory." The figures tell that it is one.
bool ReadTorchHeadless(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.cut_off = true;
  return scanner.Size(message.requested) &&
         ReadFigures(scanner, message, VersionsOfClass(before)) && message.capacity;
}

/// The same where the paste begins behind the request: "GPU 0 has a total capacity of S of which".
/// The device stands in front of these words.
bool ReadTorchCapacity(Scanner& scanner, std::string_view before, OomMessage& message) {
  const std::size_t last = before.find_last_not_of(" \t");
  const std::size_t digits = before.find_last_not_of("0123456789", last);
  if (last == std::string_view::npos || digits == std::string_view::npos) return false;
  const auto [end, error] = std::from_chars(before.data() + digits + 1, before.data() + last + 1,
                                            message.device.emplace());
  if (error != std::errc()) return false;
  scanner.Size(message.capacity);
  ReadSentences(scanner, message, TorchVersions{.first = 201});
  message.cut_off = true;
  return message.free || message.allocated || message.allowed || !message.processes.empty();
}

/// "Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate S
/// (GPU 0; …)": Intel's driver has a limit for one block.
bool ReadXpuBlock(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Literal("with size larger than") || !scanner.Size(message.allowed)) return false;
  message.subject = "one block";
  scanner.Literal("!");
  message.cut_off = true;
  if (scanner.Literal("Tried to allocate") && scanner.Size(message.requested)) {
    ReadFigures(scanner, message, {});
  }
  return true;
}

/// "NVML_SUCCESS == r INTERNAL ASSERT FAILED at …CUDACachingAllocator.cpp":1015: PyTorch had run
/// out of memory and stumbled over the driver's answer while it wrote its message.
bool ReadNvmlAssert(Scanner& scanner, std::string_view, OomMessage&) {
  return scanner.SkipPast("INTERNAL ASSERT FAILED", 80) &&
         scanner.SkipPast("CUDACachingAllocator.cpp", 160);
}

/// "!handles_.at(i) INTERNAL ASSERT FAILED at …CUDACachingAllocator.cpp":487: the driver gave only
/// a part of what an expandable segment was to grow by, and the allocator did not clean up. From
/// then on every request in that range fails so.
bool ReadBrokenSegment(Scanner& scanner, std::string_view, OomMessage&) {
  return scanner.SkipPast("CUDACachingAllocator.cpp", 160);
}

/// The log's line for the same event: "requested S but total_allocated_memory (S) + requested size
/// would exceed memory limit (S = P% of S)". What it calls allocated is what is reserved.
bool ReadTorchRejectedWarning(Scanner& scanner, std::string_view, OomMessage& message) {
  message.torch = TorchVersions{.first = 212};
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
bool ReadTorchAsync(Scanner& scanner, std::string_view before, OomMessage& message) {
  const std::optional<std::int64_t> device = scanner.Integer();
  if (device) message.device = static_cast<int>(*device & 0xffff);
  if (!scanner.Literal("would exceed allowed memory")) {
    // ComfyUI runs on cudaMallocAsync and shows the first words alone.
    const bool raised = before.find("OutOfMemoryError") != std::string_view::npos;
    message.program = Program::kComfyUi;
    return scanner.Literal("This error means you ran out of memory") ||
           (scanner.AtLineEnd() && (raised || !device));
  }
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
  message.torch = TorchVersions{.first = 214};
  message.cut_off = !scanner.Size(message.requested);
  return true;
}

/// "Invalid buffer size: 24.00 GB": Metal refuses so large a buffer.
bool ReadMpsBuffer(Scanner& scanner, std::string_view, OomMessage& message) {
  message.subject = "one buffer";
  return scanner.Size(message.requested);
}

/// Ascend's "(PID:3301, Device:2, RankID:2) ERR00006 PTA memory error".
bool ReadAscend(Scanner& scanner, std::string_view before, OomMessage& message) {
  const std::string_view line = before.substr(before.rfind('\n') + 1);
  message.device = ValueBehind(line, "Device:");
  if (!message.rank) message.rank = ValueBehind(line, "RankID:");
  scanner.SkipPast("Failed to allocate memory", 60);
  return true;
}

/// "EL0004: [time] Failed to allocate memory."
bool ReadAscendDriver(Scanner& scanner, std::string_view, OomMessage&) {
  return scanner.SkipPast("Failed to allocate memory", 40);
}

}  // namespace plimsoll
