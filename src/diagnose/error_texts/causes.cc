#include "diagnose/error_texts/causes.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {
namespace {

// Differences of this size decide nothing.
constexpr Bytes kMaterial = 256 * kMiB;
constexpr Bytes kUsualOutside = 5 * kGiB / 2;
// Drivers keep a few hundred megabytes for themselves.
constexpr Bytes kMostDriverReserve = 640 * kMiB;
constexpr Bytes kLeastStray = 150 * kMiB;
constexpr Bytes kMostStray = 1200 * kMiB;

std::string S(Bytes bytes) { return FormatBytes(bytes); }

/// Judges the causes one by one; each function adds a finding or a sentence to ruled_out.
class CauseFinder {
 public:
  explicit CauseFinder(const Figures& figures) : f_(figures) {}

  Judgement Run() {
    short_ = std::max<Bytes>(0, f_.requested.value_or(0) - f_.free.value_or(0));
    if (!TooLarge() && !Limit()) {
      if (f_.oversubscribed) {
        Oversubscribed();
      } else if (f_.free_suffices) {
        FreeSuffices();
      } else {
        Shares();
      }
    }
    return std::move(result_);
  }

 private:
  bool TooLarge();
  bool Limit();
  void ExplainLimit(Bytes held);
  void Oversubscribed();
  void FreeSuffices();
  void Shares();
  Bytes Fragmentation();
  bool StrayContexts();
  Bytes Neighbours();
  Bytes Outside();
  void Capacity();
  bool LimitWouldBePrinted() const;
  Finding& Add(FindingId id, Severity severity, std::string title);

  const Figures& f_;
  Bytes short_ = 0;
  Judgement result_;
};

Finding& CauseFinder::Add(FindingId id, Severity severity, std::string title) {
  Finding finding;
  finding.id = id;
  finding.severity = severity;
  finding.rank = f_.message.rank;
  finding.title = std::move(title);
  result_.findings.push_back(std::move(finding));
  return result_.findings.back();
}

bool CauseFinder::TooLarge() {
  if (!f_.requested || !f_.capacity) return false;
  if (*f_.requested <= *f_.capacity) {
    result_.ruled_out.push_back(
        {FindingId::kCapacity,
         fmt::format("A request larger than the device: {} was asked for, the device has {}.",
                     S(*f_.requested), S(*f_.capacity))});
    return false;
  }
  result_.why = OomCause::kTooLarge;
  result_.reason = fmt::format(
      "That is more than the whole device has, so it could not have worked even on an empty one: "
      "one tensor is far larger than intended, or the work must be split.");
  Finding& finding =
      Add(FindingId::kCapacity, Severity::kHigh, "One request is larger than the device");
  finding.evidence = {
      fmt::format("{} asked for at once, {} on the device", S(*f_.requested), S(*f_.capacity))};
  finding.remedies = {
      Rule("check the shape at the failing line: a product of batch, length and width that grew by "
           "a broadcast, an outer product or full attention scores"),
      Rule("split that tensor: smaller batch, chunks, or attention that never stores the scores")};
  return true;
}

/// PyTorch 1.8 to 2.0 and from 2.5 on print a limit that is set; 2.1 to 2.4 forgot to.
bool CauseFinder::LimitWouldBePrinted() const {
  if (f_.message.source == MessageSource::kTorchAsync) return true;
  if (f_.message.cut_off) return false;
  const std::string& wording = f_.message.wording;
  for (const char* known : {"2.5", "2.6", "2.10", "2.11", "1.8 to", "1.10 to", "1.13 to"}) {
    if (wording.starts_with(std::string("PyTorch ") + known)) return true;
  }
  return false;
}

bool CauseFinder::Limit() {
  const bool rejected = f_.message.source == MessageSource::kTorchRejected;
  const std::optional<Bytes>& allowed = f_.message.allowed;
  if (!allowed && !rejected) {
    if (LimitWouldBePrinted()) {
      result_.ruled_out.push_back(
          {FindingId::kLimit,
           "A limit set by the program: this release prints one that is set, and there is none."});
    }
    return false;
  }
  const Bytes held = f_.reserved.value_or(f_.tensors.value_or(0)) + f_.message.other.value_or(0);
  if (allowed && f_.requested && held + *f_.requested + f_.slack < *allowed) {
    result_.ruled_out.push_back(
        {FindingId::kLimit,
         fmt::format("The limit of {}: {} in use and {} more would stay below it.", S(*allowed),
                     S(held), S(*f_.requested))});
    return false;
  }
  ExplainLimit(held);
  return true;
}

void CauseFinder::ExplainLimit(Bytes held) {
  const std::optional<Bytes>& allowed = f_.message.allowed;
  result_.why = OomCause::kLimit;
  const std::string much = allowed ? " of " + S(*allowed) : "";
  result_.reason = fmt::format(
      "The program may use only a part of the device: a limit{} was set, and the request would "
      "have gone beyond it.",
      much);
  if (f_.message.source == MessageSource::kTorchMps) {
    result_.reason = fmt::format(
        "An Apple GPU shares the host's memory; PyTorch may use{} of it, and the request would "
        "have gone beyond that.",
        allowed ? " " + S(*allowed) : " only a part");
  }
  Finding& finding =
      Add(FindingId::kLimit, Severity::kHigh, fmt::format("The limit{} was reached", much));
  if (allowed && held > 0 && f_.requested) {
    finding.evidence.push_back(fmt::format("{} in use + {} asked for = {}, allowed are {}", S(held),
                                           S(*f_.requested), S(held + *f_.requested), S(*allowed)));
  }
  if (f_.free && f_.requested && *f_.free >= *f_.requested) {
    finding.evidence.push_back(fmt::format("the driver still had {} free", S(*f_.free)));
  }
  if (f_.message.source == MessageSource::kTorchMps) {
    finding.remedies = {Rule("PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 takes the limit away",
                             "macOS may begin to swap, or the system may fail")};
  } else {
    finding.remedies = {
        Rule("raise or remove torch.cuda.set_per_process_memory_fraction (or "
             "per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF)")};
  }
}

void CauseFinder::Oversubscribed() {
  const Bytes held = f_.reserved.value_or(*f_.tensors);
  result_.why = OomCause::kCapacity;
  result_.reason = fmt::format(
      "PyTorch holds {}, more than the device has: the Windows driver lent it the host's memory, "
      "which is very slow, and that ran out too.",
      S(held));
  Finding& finding = Add(FindingId::kCapacity, Severity::kHigh,
                         "More is in use than the device has: the driver lends host memory");
  finding.evidence = {
      fmt::format("{} held by PyTorch on a device of {}", S(held), S(*f_.capacity))};
  finding.remedies = {
      Rule("set 'CUDA - Sysmem Fallback Policy' to 'Prefer No Sysmem Fallback' in the NVIDIA "
           "control panel: the run then fails at the real limit instead of becoming slow"),
      Rule("smaller batch, lower precision, or checkpointed activations")};
}

void CauseFinder::FreeSuffices() {
  const std::string had = fmt::format("The driver had {} free, more than the {} asked for",
                                      S(*f_.free), S(*f_.requested));
  result_.reason = had +
                   ", so the device was not simply full: a limit, pinned host memory, another "
                   "process or broken address space are possible.";
  if (f_.message.source == MessageSource::kTorchXpu) {
    result_.reason = had + ": that driver may refuse a single block of this size.";
  }
  // The Windows driver does not count memory by process: there pinned host memory is the suspect.
  const bool windows = std::any_of(f_.message.processes.begin(), f_.message.processes.end(),
                                   [](const ProcessUse& p) { return !p.bytes; });
  if (!LimitWouldBePrinted()) {
    Finding& limit = Add(FindingId::kLimit, windows ? Severity::kLow : Severity::kMedium,
                         "A limit that this text does not print, perhaps");
    limit.evidence = {had, "PyTorch 2.1 to 2.4 do not print a memory fraction that was set"};
    limit.remedies = {
        Rule("look for set_per_process_memory_fraction and for frameworks that set it")};
  }
  Finding& other = Add(FindingId::kOtherProcess, Severity::kLow,
                       "Another process may have held the memory for a moment");
  other.evidence = {had,
                    "the free memory is counted after the request has failed and the cache was "
                    "given back; what a neighbour frees in between is in it"};
  other.remedies = {
      Rule("watch the device while the job runs: nvidia-smi "
           "--query-compute-apps=pid,used_memory --format=csv -l 1")};
  Finding& pieces = Add(FindingId::kFragmentation, windows ? Severity::kMedium : Severity::kLow,
                        "The free memory may be in pieces, or not on the device at all");
  pieces.evidence = {had,
                     "under WSL and Windows the same error comes when pinned host memory "
                     "(pin_memory=True) cannot be had"};
  pieces.remedies = {Rule("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
                     Rule("under WSL: pin_memory=False in the DataLoader, or more memory in "
                          ".wslconfig")};
}

/// Free pieces inside segments that are in use; the bytes where they would have sufficed.
Bytes CauseFinder::Fragmentation() {
  if (!f_.reserved_free || !f_.requested) return 0;
  const Bytes pieces = *f_.reserved_free;
  if (pieces + f_.free.value_or(0) < *f_.requested) {
    result_.ruled_out.push_back(
        {FindingId::kFragmentation,
         fmt::format("Fragmentation: only {} of what PyTorch holds is free, less than the {} that "
                     "were missing.",
                     S(pieces), S(short_))});
    return 0;
  }
  const bool large = f_.reserved && pieces >= kMaterial && pieces * 20 >= *f_.reserved;
  if (!large) {
    result_.ruled_out.push_back(
        {FindingId::kFragmentation,
         fmt::format(
             "Fragmentation as the main cause: {} in free pieces is little beside what is in use.",
             S(pieces))});
    return 0;
  }
  Finding& finding =
      Add(FindingId::kFragmentation, pieces >= *f_.requested ? Severity::kHigh : Severity::kMedium,
          "Enough memory is reserved, but in pieces");
  finding.evidence = {
      fmt::format("{} is reserved by PyTorch but unallocated, {} was asked for", S(pieces),
                  S(*f_.requested)),
      "PyTorch gives back every segment that is wholly free before it fails: what is left lies "
      "between tensors that are in use"};
  finding.remedies = {Rule("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                           "nothing as a rule; not on every platform"),
                      Rule("fewer different shapes: pad or bucket the batches")};
  return pieces;
}

/// Many processes with a context each and nothing else.
bool CauseFinder::StrayContexts() {
  const auto stray = std::count_if(f_.others.begin(), f_.others.end(), [](const ProcessUse& p) {
    return p.bytes && *p.bytes >= kLeastStray && *p.bytes <= kMostStray;
  });
  if (stray < 2 || static_cast<std::size_t>(stray) != f_.others.size()) return false;
  const Bytes named = *f_.others_sum;
  Finding& finding =
      Add(FindingId::kStrayContext, named >= short_ ? Severity::kHigh : Severity::kMedium,
          fmt::format("{} other processes hold a context on this device", stray));
  finding.evidence = {fmt::format("{} processes with {} together, each about the size of an empty "
                                  "CUDA context",
                                  stray, S(named)),
                      "typical of ranks that all touched GPU 0 before they chose their own"};
  finding.remedies = {
      Proven("call torch.cuda.set_device(local_rank) before anything touches CUDA, and load "
             "checkpoints with map_location",
             named)};
  return true;
}

Bytes CauseFinder::Neighbours() {
  const Bytes named = f_.others_sum.value_or(0);
  const bool listed = !f_.message.processes.empty();
  // Nobody's memory is a neighbour's only where this process's own is known, or nobody is named.
  const Bytes least = f_.own ? kMostDriverReserve : f_.slack;
  const bool hidden = f_.unnamed && *f_.unnamed > least && (f_.own || !listed);
  const Bytes others = named + (hidden ? *f_.unnamed : 0);
  if (StrayContexts()) return named;
  if (others < kMaterial) {
    if (f_.unnamed && f_.others.empty() == !f_.others_sum) {
      result_.ruled_out.push_back(
          {FindingId::kOtherProcess,
           fmt::format(
               "Other processes: the device less what is free and what this process has leaves {}.",
               others > 0 ? S(others)
                          : std::string("nothing beyond the rounding of the figures"))});
    }
    return 0;
  }
  if (!listed && others <= kUsualOutside) {
    result_.ruled_out.push_back(
        {FindingId::kOtherProcess,
         fmt::format(
             "A large other process: only {} is neither free nor PyTorch's, and this process's own "
             "context is in that.",
             S(others))});
    return 0;
  }
  Finding& finding =
      Add(FindingId::kOtherProcess, others >= short_ ? Severity::kHigh : Severity::kMedium,
          fmt::format("Other processes hold {} of this device", S(others)));
  for (const ProcessUse& p : f_.others) {
    finding.evidence.push_back(
        fmt::format("process {} has {}", p.pid.value_or(0),
                    p.bytes ? S(*p.bytes) : std::string("an unknown amount")));
  }
  if (hidden) {
    finding.evidence.push_back(
        fmt::format("{} of the device are neither free nor {}, and no process is named for them",
                    S(*f_.unnamed), f_.own ? "this process's" : "reserved by PyTorch"));
  }
  if (named > 0) {
    finding.remedies = {Proven("stop the other processes, or take another device", named)};
  } else {
    finding.remedies = {Rule("see who it is with nvidia-smi; stop it, or take another device")};
  }
  return others;
}

Bytes CauseFinder::Outside() {
  if (!f_.outside) return 0;
  if (*f_.outside <= kUsualOutside) {
    result_.ruled_out.push_back(
        {FindingId::kOutsidePytorch,
         fmt::format("Memory outside PyTorch: {} is what a CUDA context and its libraries take.",
                     S(*f_.outside))});
    return 0;
  }
  Finding& finding =
      Add(FindingId::kOutsidePytorch, *f_.outside >= short_ ? Severity::kHigh : Severity::kMedium,
          fmt::format("{} of this process is outside PyTorch's allocator", S(*f_.outside)));
  finding.evidence = {
      fmt::format("{} in use by this process, {} reserved by PyTorch", S(*f_.own), S(*f_.reserved)),
      "a context takes 0.3 to 0.6 GiB, one NCCL communicator 0.5 to 1.6 GiB"};
  finding.remedies = {
      Rule("fewer NCCL communicators, or smaller ones: NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE"),
      Rule("see who takes it: nsys profile --cuda-memory-usage=true")};
  return *f_.outside;
}

void CauseFinder::Capacity() {
  if (!f_.tensors) {
    result_.reason = "The text gives no figures that tell why.";
    Add(FindingId::kNone, Severity::kInfo, "The text does not tell why").evidence = {
        "what the device was full of is not in it"};
    return;
  }
  result_.why = OomCause::kCapacity;
  const Bytes all = f_.capacity.value_or(0);
  result_.reason =
      all > 0 ? fmt::format("The device is simply full: PyTorch's tensors hold {} of its {}.",
                            S(*f_.tensors), S(all))
              : fmt::format("PyTorch's tensors hold {}.", S(*f_.tensors));
  Finding& finding =
      Add(FindingId::kCapacity, Severity::kHigh, "The tensors of this program fill the device");
  finding.evidence = {fmt::format("{} in tensors", S(*f_.tensors))};
  if (all > 0) {
    finding.evidence.back() +=
        fmt::format(", {:.0f} % of the device",
                    100.0 * static_cast<double>(*f_.tensors) / static_cast<double>(all));
  }
  finding.remedies = {Rule("smaller batch, or the same batch in several accumulation steps"),
                      Rule("checkpointed activations", "time for one more forward pass"),
                      Rule("bf16 autocast, a leaner optimizer, or sharding over more devices")};
}

/// Who holds what the request lacked: the largest share that would have sufficed is the cause.
void CauseFinder::Shares() {
  const Bytes pieces = Fragmentation();
  const Bytes neighbours = Neighbours();
  const Bytes outside = Outside();
  const Bytes largest = std::max({pieces, neighbours, outside});
  const bool decides = largest >= short_ && f_.requested && largest > 0 &&
                       (!f_.capacity || largest * 20 >= *f_.capacity);
  if (!decides) {
    Capacity();
    return;
  }
  if (largest == pieces) {
    result_.why = OomCause::kFragmentation;
    result_.reason = fmt::format(
        "PyTorch itself held {} that no tensor used, but in pieces between tensors in use, none of "
        "them large enough.",
        S(pieces));
  } else if (largest == neighbours) {
    result_.why = OomCause::kNeighbour;
    result_.reason = fmt::format(
        "Other processes on the same device hold {}; without them the request would have fit.",
        S(neighbours));
  } else {
    result_.why = OomCause::kOutside;
    result_.reason = fmt::format(
        "{} of what this process uses is outside PyTorch's allocator (context, NCCL, libraries), "
        "unusually much.",
        S(outside));
  }
}

}  // namespace

Remedy Rule(std::string change, std::string costs) {
  return {
      .change = std::move(change), .saves = {}, .costs = std::move(costs), .basis = Basis::kRule};
}

Remedy Proven(std::string change, Bytes saves, std::string costs) {
  return {.change = std::move(change),
          .saves = saves,
          .costs = std::move(costs),
          .basis = Basis::kRecorded};
}

Judgement Judge(const Figures& figures) {
  if (!figures.IsTorch()) return JudgeLibrary(figures);
  return CauseFinder(figures).Run();
}

}  // namespace plimsoll
