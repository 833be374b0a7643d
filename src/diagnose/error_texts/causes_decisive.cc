// Causes that leave no room for another one: a wrong size, a request beyond the device, a limit,
// memory that the host lent, and a device that was not full at all.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/causes.h"

namespace plimsoll {
namespace {

// No machine has so much; sizes beyond it are computed wrongly.
constexpr Bytes kPetabyte = Bytes{1} << 50;

/// A limit and what counts towards it.
struct LimitFigures {
  explicit LimitFigures(const Figures& figures) : f(figures) {
    const OomMessage& m = f.message;
    const bool block = m.source == MessageSource::kTorchXpu && m.subject == "one block";
    if (block) held = 0;
    if (!block && f.held) held = *f.held + m.other.value_or(0);
    whole = block || f.HeldIsAll();
    // Apple's and Intel's messages come from the limit alone, and so do refusals beforehand.
    always = m.source == MessageSource::kTorchMps || block ||
             m.source == MessageSource::kTorchRejected || !m.allowed;
  }

  bool Below() const { return *held + *f.requested + f.slack < *f.message.allowed; }
  /// Whether the request would have stayed below the limit.
  bool Excludes() const { return !always && f.requested && held && whole && Below(); }
  /// Whether the text leaves open if the limit was met: it does not say all that is held. A device
  /// with enough free shows that it was.
  bool SaysNothing() const {
    if (always) return false;
    if (!f.requested) return true;
    if (f.free_suffices || *f.requested > *f.message.allowed) return false;
    return !held || (!whole && Below());
  }

  /// Why the sum of what is held and asked for is not above the limit, though it was met.
  std::string WhyBelow(Bytes sum) const {
    if (sum > *f.message.allowed) return "";
    if (whole || !Below()) return ": the text rounds its figures";
    return fmt::format(": at least {} more was reserved but unallocated, which the text lacks",
                       S(*f.message.allowed - sum));
  }

  const Figures& f;
  std::optional<Bytes> held;
  /// `held` is all that counts, and not only what is in tensors.
  bool whole = false;
  bool always = false;
};

Remedy CheckTheShape(const OomMessage& message) {
  return Rule(message.where.empty()
                  ? "print the shapes at the failing line: a broadcast, an outer product or full "
                    "attention scores multiply batch, length and width"
                  : fmt::format("print the shapes at {}: a broadcast, an outer product or full "
                                "attention scores multiply batch, length and width",
                                message.where),
              Lever::kCheckSize);
}

std::vector<Remedy> SplitTheTensor(const OomMessage& message) {
  const Runner runner = RunnerOf(message);
  if (!IsTorchScript(runner) && runner != Runner::kUnknown) return NeedLess(message);
  return {CheckTheShape(message),
          Rule("split that tensor: a smaller batch, chunks, or attention that never stores the "
               "scores",
               Lever::kSmallerBatch)};
}

/// Metal has a limit for one buffer, which its text does not print.
Opinion OneBufferOfMetal(const Figures& f) {
  Finding finding;
  finding.id = FindingId::kCapacity;
  finding.severity = Severity::kHigh;
  finding.title = fmt::format("One tensor of {} is larger than a buffer may be on this machine",
                              S(*f.requested));
  finding.evidence = {"Metal refuses such a buffer however much memory is free"};
  finding.remedies = SplitTheTensor(f.message);
  return {.found = std::move(finding), .why = OomCause::kTooLarge};
}

/// PyTorch 1.8 to 2.0 and from 2.5 on print a limit that is set; 2.1 to 2.4 forgot to.
bool LimitWouldBePrinted(const OomMessage& m) {
  if (m.source == MessageSource::kTorchAsync) return true;
  if (m.cut_off || !m.torch) return false;
  return m.torch->first >= 205 || (m.torch->first >= 108 && m.torch->last <= 200);
}

/// Only 2.1 to 2.4 keep a limit to themselves; before 1.8 none can be set.
bool LimitMayHide(const OomMessage& m) {
  if (m.source == MessageSource::kTorchAsync) return false;
  return m.cut_off || !m.torch || (m.torch->last >= 201 && m.torch->first <= 204);
}

std::string TitleOfLimit(const Figures& f) {
  const OomMessage& m = f.message;
  if (m.source == MessageSource::kTorchMps) {
    return m.allowed ? fmt::format(
                           "PyTorch may use {} of the memory that an Apple GPU shares with "
                           "the host, and the request goes beyond that",
                           S(*m.allowed))
                     : "PyTorch may use only a part of the memory that an Apple GPU shares";
  }
  if (m.source == MessageSource::kTorchXpu && m.subject == "one block") {
    return fmt::format("Intel's driver gives no single block above {} on this platform",
                       S(*m.allowed));
  }
  return m.allowed ? fmt::format(
                         "A limit of {} is set for this program, and the request goes "
                         "beyond it",
                         S(*m.allowed))
                   : "A limit is set for this program, and the request goes beyond it";
}

/// Against Intel's limit for one block.
std::vector<Remedy> SmallerBlocks(const OomMessage& message) {
  return {CheckTheShape(message),
          Rule("a smaller batch, or attention in slices", Lever::kSmallerBatch),
          Rule("a newer driver and PyTorch 2.8 or newer, which take larger blocks")};
}

std::vector<Remedy> AgainstTheLimit(const Figures& f) {
  const OomMessage& m = f.message;
  if (m.source == MessageSource::kTorchMps) {
    std::vector<Remedy> remedies = {
        Rule("a smaller batch or input, or lower precision", Lever::kSmallerBatch),
        Rule("give the cache back between phases, and close other programs: they share the memory",
             Lever::kReleaseTensors, {"torch.mps.empty_cache()"}),
        Rule("without the limit: last, and with all work saved", Lever::kMemoryLimit,
             {"PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 python train.py"},
             "macOS may swap heavily, stop programs or restart")};
    return remedies;
  }
  if (m.source == MessageSource::kTorchXpu && m.subject == "one block") return SmallerBlocks(m);
  return {Rule("raise or remove the limit; frameworks set it too", Lever::kMemoryLimit,
               {"torch.cuda.set_per_process_memory_fraction(1.0)",
                "# or per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF"})};
}

/// Why a device with room refuses, in the order in which it is suspected.
enum class Suspect : std::uint8_t { kHostBacking, kBlockLimit, kHiddenLimit, kMoment };

Suspect SuspectOf(const OomMessage& m) {
  // Windows and WSL do not count memory by process, and refuse what the host cannot back.
  const bool windows = m.signs.windows || m.signs.wsl ||
                       std::any_of(m.processes.begin(), m.processes.end(),
                                   [](const ProcessUse& p) { return !p.bytes; });
  if (windows) return Suspect::kHostBacking;
  if (VendorOf(m) == Vendor::kIntel) return Suspect::kBlockLimit;
  return LimitMayHide(m) ? Suspect::kHiddenLimit : Suspect::kMoment;
}

FindingId IdOf(Suspect suspect) {
  switch (suspect) {
    case Suspect::kHostBacking:
      return FindingId::kHostMemory;
    case Suspect::kBlockLimit:
    case Suspect::kHiddenLimit:
      return FindingId::kLimit;
    case Suspect::kMoment:
      return FindingId::kOtherProcess;
  }
  return FindingId::kNone;
}

std::string_view WordsOf(Suspect suspect) {
  switch (suspect) {
    case Suspect::kHostBacking:
      return "under Windows and WSL a request also fails when the host cannot back it";
    case Suspect::kBlockLimit:
      return "Intel's drivers refuse single blocks of some size";
    case Suspect::kHiddenLimit:
      return "a limit that this release does not print is possible";
    case Suspect::kMoment:
      return "another process may have held the memory for a moment";
  }
  return {};
}

void AddHostBacking(Finding& finding) {
  finding.evidence.push_back(
      "device memory needs as much room in the page file or in WSL's memory, and so does pinned "
      "memory (pin_memory=True)");
  finding.remedies.push_back(
      Rule("a larger page file (System > Advanced > Performance > Virtual memory), or more memory "
           "for WSL",
           Lever::kHostLimit, {"# %UserProfile%\\.wslconfig", "[wsl2]", "memory=24GB"}));
  finding.remedies.push_back(
      Rule("no pinned memory", Lever::kLoaderWorkers, {"DataLoader(..., pin_memory=False)"}));
}

}  // namespace

Opinion BugInSize(const Figures& f) {
  const bool absurd = f.message.source == MessageSource::kTorchAbsurd;
  if (!absurd && (!f.requested || *f.requested < kPetabyte)) return {};
  Finding finding;
  finding.id = FindingId::kNone;
  finding.severity = Severity::kHigh;
  finding.title =
      absurd ? "No machine has the memory that was asked for: a size was computed wrongly, and "
               "memory is not the problem"
             : fmt::format(
                   "No machine has {}: a size was computed wrongly, and memory is not the "
                   "problem",
                   S(*f.requested));
  finding.evidence = {absurd ? "more than 1 EB was asked for"
                             : fmt::format("{} bytes were asked for", *f.requested)};
  finding.remedies = {
      Rule("print the shapes at the failing line; look for a dimension that is "
           "negative, overflowed or never set",
           Lever::kCheckSize)};
  return {.found = std::move(finding), .why = OomCause::kBugInSize};
}

Opinion LargerThanTheDevice(const Figures& f) {
  if (f.message.source == MessageSource::kTorchMps && f.message.subject == "one buffer" &&
      f.requested) {
    return OneBufferOfMetal(f);
  }
  if (!f.requested || !f.capacity) return {};
  if (*f.requested <= *f.capacity) {
    return {
        .excluded = RuledOut{
            FindingId::kNone,
            fmt::format("A request larger than the device: {} was asked for, the device has {}.",
                        S(*f.requested), S(*f.capacity))}};
  }
  Finding finding;
  finding.id = FindingId::kCapacity;
  finding.severity = Severity::kHigh;
  finding.title = fmt::format(
      "One request of {} is larger than the whole device: it would fail on an empty one too",
      S(*f.requested));
  finding.evidence = {
      fmt::format("{} asked for at once, {} on the device", S(*f.requested), S(*f.capacity))};
  finding.remedies = SplitTheTensor(f.message);
  return {.found = std::move(finding), .why = OomCause::kTooLarge};
}

Opinion ALimit(const Figures& f) {
  const OomMessage& m = f.message;
  if (!m.allowed && m.source != MessageSource::kTorchRejected) {
    // A text without any figure was shortened by whoever printed it.
    if (!LimitWouldBePrinted(m) || !m.requested) return {};
    return {.excluded = RuledOut{FindingId::kLimit,
                                 "A limit set by the program: this release of PyTorch would print "
                                 "it, and the text has none."}};
  }
  const LimitFigures limit(f);
  if (limit.Excludes()) {
    return {.excluded = RuledOut{FindingId::kLimit,
                                 fmt::format("The limit of {}: {} held and {} more stay below it.",
                                             S(*m.allowed), S(*limit.held), S(*f.requested))}};
  }
  if (limit.SaysNothing()) return {};
  Finding finding;
  finding.id = FindingId::kLimit;
  finding.severity = Severity::kHigh;
  finding.title = TitleOfLimit(f);
  if (m.allowed && limit.held && *limit.held > 0 && f.requested) {
    const Bytes sum = *limit.held + *f.requested;
    finding.evidence.push_back(fmt::format("{} held + {} asked for = {}, allowed are {}{}",
                                           S(*limit.held), S(*f.requested), S(sum), S(*m.allowed),
                                           limit.WhyBelow(sum)));
  }
  if (f.free && f.requested && *f.free >= *f.requested) {
    finding.evidence.push_back(fmt::format("the driver still had {} free", S(*f.free)));
  }
  finding.remedies = AgainstTheLimit(f);
  return {.found = std::move(finding), .why = OomCause::kLimit};
}

Opinion Oversubscription(const Figures& f) {
  if (!f.oversubscribed) return {};
  Finding finding;
  finding.id = FindingId::kCapacity;
  finding.severity = Severity::kHigh;
  finding.title = fmt::format(
      "PyTorch holds {}, more than the device has: the Windows driver lent it the host's memory, "
      "which is very slow, and that ran out too",
      S(*f.held));
  finding.evidence = {
      fmt::format("{} held by PyTorch on a device of {}", S(*f.held), S(*f.capacity))};
  finding.remedies = NeedLess(f.message);
  finding.remedies.push_back(
      Rule("to fail at the device's own limit instead of becoming slow: 'CUDA - Sysmem Fallback "
           "Policy' to 'Prefer No Sysmem Fallback' in the NVIDIA control panel",
           Lever::kMemoryLimit));
  return {.found = std::move(finding), .why = OomCause::kCapacity};
}

/// More was free than was asked for. The likeliest reason names the finding; the others are told
/// with it.
Opinion FreeSuffices(const Figures& f) {
  if (!f.free_suffices) return {};
  const OomMessage& m = f.message;
  const Suspect suspect = SuspectOf(m);
  Finding finding;
  finding.severity = Severity::kMedium;
  finding.id = IdOf(suspect);
  finding.title =
      fmt::format("The device was not full, {} was free: {}", S(*f.free), WordsOf(suspect));
  if (suspect == Suspect::kBlockLimit) {
    finding.evidence = {fmt::format("{} in one block", S(*f.requested))};
    finding.remedies = SmallerBlocks(m);
    return {.found = std::move(finding), .why = OomCause::kUnknown};
  }
  if (suspect == Suspect::kHostBacking) AddHostBacking(finding);
  if (LimitMayHide(m)) {
    finding.evidence.push_back("PyTorch 2.1 to 2.4 do not print a memory fraction that was set");
    finding.remedies.push_back(
        Rule("look for set_per_process_memory_fraction, in frameworks too", Lever::kMemoryLimit));
  }
  finding.evidence.push_back(
      "what is free is counted after the request has failed and the cache was given back: what "
      "another process frees in between is in it");
  finding.remedies.push_back(SeeWhoUsesIt(m, "watch the device while the job runs"));
  finding.evidence.push_back(
      "free memory may lie in pieces of the driver's, none of them large enough");
  if (auto remedy = KeepTogether(m)) finding.remedies.push_back(std::move(*remedy));
  return {.found = std::move(finding), .why = OomCause::kUnknown};
}

}  // namespace plimsoll
