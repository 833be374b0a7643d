// Causes that hold a share of what was missing: free pieces, CUDA graphs, other processes, memory
// outside the allocator, one large request. How much of it decides how grave they are.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/causes.h"

namespace plimsoll {
namespace {

// Differences of this size decide nothing.
constexpr Bytes kMaterial = 256 * kMiB;
// A laptop's card or a T4 has 115 to 141 MiB.
constexpr Bytes kLeastStray = 100 * kMiB;
constexpr Bytes kMostStray = 1200 * kMiB;

/// By how much of what was missing the bytes account for.
Severity SeverityOf(const Figures& f, Bytes bytes) {
  const Bytes missing = f.missing.value_or(0);
  if (missing == 0) return Severity::kMedium;
  // A sliver of the device that would have served this one request would not serve the next.
  const bool sliver = f.capacity && bytes * 20 < *f.capacity;
  if (bytes >= missing) return sliver ? Severity::kMedium : Severity::kHigh;
  return bytes * 2 >= missing ? Severity::kMedium : Severity::kLow;
}

Remedy Proven(std::string change, Bytes saves, Lever lever, std::vector<std::string> code = {}) {
  Remedy remedy = Rule(std::move(change), lever, std::move(code));
  remedy.saves = saves;
  remedy.basis = Basis::kRecorded;
  return remedy;
}

/// Every other process holds a context and hardly more.
bool AreStrayContexts(const Figures& f) {
  return f.others.size() >= 2 && std::all_of(f.others.begin(), f.others.end(), [](auto& p) {
           return p.bytes && *p.bytes >= kLeastStray && *p.bytes <= kMostStray;
         });
}

Opinion StrayContexts(const Figures& f) {
  Finding finding;
  finding.id = FindingId::kStrayContext;
  finding.severity = SeverityOf(f, *f.others_sum);
  finding.title = fmt::format("{} other processes hold a context on this {}, {} together",
                              f.others.size(), FactsOf(f.message).device, S(*f.others_sum));
  finding.evidence = {"each is about the size of an empty context",
                      "typical of ranks that all touched the first device before they chose their "
                      "own"};
  finding.remedies = {
      Proven("choose the device before anything touches it, and load checkpoints "
             "with map_location",
             *f.others_sum, Lever::kOtherProcesses,
             {"torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))"})};
  return {.found = std::move(finding), .why = OomCause::kNeighbour, .explains = *f.others_sum};
}

std::string NoOtherProcess(const Figures& f) {
  switch (f.whose) {
    case Unnamed::kDriver:
      return fmt::format(
          "Other processes: none is named, and the {} that nobody is charged with are what drivers "
          "keep.",
          S(f.unnamed));
    case Unnamed::kContext:
      return fmt::format(
          "A large other process: {} is neither free nor PyTorch's, which this process's own "
          "context accounts for.",
          S(*f.outside));
    case Unnamed::kStrangers:
      if (!f.others_sum) {
        return fmt::format(
            "A large other process: {} is in use by nobody whom the text names, more than drivers "
            "keep of such a card.",
            S(f.unnamed));
      }
      [[fallthrough]];
    default:
      return f.others_sum
                 ? fmt::format("Other processes: those that are named hold {} together.",
                               S(*f.others_sum))
                 : "Other processes: what is free and what this process has leave nothing beyond "
                   "the rounding of the figures.";
  }
}

/// Intel's texts do not say what was free. Where PyTorch leaves more than was asked for, somebody
/// else has it.
bool RoomIsMissing(const Figures& f) {
  return !f.free && f.capacity && f.held && f.requested && !f.message.cut_off &&
         *f.capacity - *f.held >= *f.requested + kMaterial;
}

Opinion NotOursAndNotFree(const Figures& f) {
  const Bytes rest = *f.capacity - *f.held;
  Finding finding;
  finding.id = FindingId::kOtherProcess;
  finding.severity = Severity::kMedium;
  finding.title = fmt::format(
      "PyTorch holds {} of the device's {}: the rest was in use by others, or the driver refused "
      "it",
      S(*f.held), S(*f.capacity));
  finding.evidence = {
      fmt::format("{} is not PyTorch's, more than the {} that was asked for; the text does not say "
                  "how much of it was free",
                  S(rest), S(*f.requested))};
  finding.remedies = {SeeWhoUsesIt(f.message, "see who uses the device; stop it, or take another")};
  return {.found = std::move(finding), .why = OomCause::kNeighbour, .explains = rest};
}

std::vector<std::string> WhoTheyAre(const Figures& f) {
  std::vector<std::string> evidence;
  for (const ProcessUse& p : f.others) {
    evidence.push_back(fmt::format(
        "process {} has {}", p.pid.value_or(0),
        p.bytes ? S(*p.bytes) : std::string("an amount that the driver does not tell")));
  }
  if (f.whose == Unnamed::kStrangers) {
    evidence.push_back(
        f.own ? fmt::format("{} is used by nobody whom the text names", S(f.unnamed))
              : fmt::format("{} capacity - {} free - {} held by PyTorch leaves {}; this process's "
                            "own context is in it",
                            S(*f.capacity), S(*f.free), S(*f.held),
                            S(f.unnamed + f.others_sum.value_or(0))));
    evidence.push_back(
        "processes of other users, other containers and ended ones that still hold memory are not "
        "named");
  }
  return evidence;
}

std::string WhatWasMissing(const Figures& f) {
  if (f.free && f.missing == 0) return ", and hardly anything was missing";
  if (f.missing) return fmt::format(", {}{} was missing", f.free ? "" : "at least ", S(*f.missing));
  return "; the text does not say what was free";
}

std::string TooFewPieces(const Figures& f) {
  if (*f.reserved_free == 0) return "Fragmentation: all that PyTorch holds is in use.";
  return fmt::format(
      "Fragmentation: only {} of what PyTorch holds is unused, less than the {} that were missing.",
      S(*f.reserved_free), S(f.missing.value_or(0)));
}

}  // namespace

/// The predictions of all batches on the device: the free pieces that they leave are no cause of
/// their own.
Opinion KeptPredictions(const Figures& f) {
  if (!f.message.signs.joins_predictions) return {};
  Finding finding;
  finding.id = FindingId::kEvalSpike;
  finding.severity = Severity::kHigh;
  finding.title =
      "The evaluation keeps the predictions of all its batches on the device, and was joining them";
  finding.evidence = {
      "the traceback ends where predictions are put together; that needs room for all of them a "
      "second time"};
  finding.remedies = NeedLess(f.message);
  return {.found = std::move(finding),
          .why = OomCause::kCapacity,
          .explains = std::max(f.missing.value_or(0), f.held.value_or(0))};
}

Opinion InFreePieces(const Figures& f) {
  if (!f.reserved_free || !f.requested || !f.reserved || RoomIsMissing(f)) return {};
  const Bytes pieces = *f.reserved_free;
  const bool large = pieces >= kMaterial && pieces * 20 >= *f.reserved;
  const bool suffices = pieces >= f.missing.value_or(0) && pieces > 0;
  if (!suffices && (pieces < kGiB || pieces * 10 < *f.reserved)) {
    return {.excluded = RuledOut{FindingId::kFragmentation, TooFewPieces(f)}};
  }
  Finding finding;
  finding.id = FindingId::kFragmentation;
  finding.severity = !suffices ? Severity::kLow : large ? Severity::kHigh : Severity::kMedium;
  finding.title = fmt::format(
      "PyTorch holds {} that no tensor uses, in free pieces that could not serve the "
      "request",
      S(pieces));
  finding.evidence = {fmt::format("{} is reserved but unallocated{}", S(pieces), WhatWasMissing(f)),
                      "PyTorch gives back every segment that is wholly free before it fails: what "
                      "is left lies between tensors that are in use"};
  if (auto remedy = KeepTogether(f.message)) finding.remedies.push_back(std::move(*remedy));
  if (BatchMatters(f.message)) {
    finding.remedies.push_back(Rule("fewer different shapes: pad or bucket the batches"));
  }
  return {.found = std::move(finding), .why = OomCause::kFragmentation, .explains = pieces};
}

Opinion PrivatePools(const Figures& f) {
  if (!f.pools || *f.pools < kMaterial) return {};
  Finding finding;
  finding.id = FindingId::kPrivatePools;
  finding.severity = SeverityOf(f, *f.pools);
  // It is what the graphs were captured for: a cause only where it outweighs the rest.
  if (finding.severity == Severity::kHigh) finding.severity = Severity::kMedium;
  finding.title =
      fmt::format("{} is free memory that CUDA graphs keep for themselves", S(*f.pools));
  finding.evidence = {"the text counts it as allocated; only a replay of the graphs can use it"};
  finding.remedies = {Rule("capture fewer graphs or smaller batch sizes, or run without graphs",
                           Lever::kOther, {}, "speed")};
  return {.found = std::move(finding), .why = OomCause::kOutside, .explains = *f.pools};
}

Opinion OtherProcesses(const Figures& f) {
  if (RoomIsMissing(f)) return NotOursAndNotFree(f);
  if (!f.capacity || !f.free || !f.held || f.contradictory) {
    if (!f.others_sum || *f.others_sum < kMaterial) return {};
  }
  const Bytes strangers = f.Strangers();
  if (AreStrayContexts(f)) return StrayContexts(f);
  if (strangers < kMaterial) {
    if (!f.capacity || !f.free || !f.held) return {};
    return {.excluded = RuledOut{FindingId::kOtherProcess, NoOtherProcess(f)}};
  }
  Finding finding;
  finding.id = FindingId::kOtherProcess;
  finding.severity = SeverityOf(f, strangers);
  const bool named = f.others_sum.value_or(0) >= kMaterial;
  finding.title = named ? fmt::format("Other processes hold {} of this device", S(strangers))
                        : fmt::format(
                              "{} of the device is neither free nor PyTorch's, and the text names "
                              "nobody for it: other processes, as a rule",
                              S(strangers));
  finding.evidence = WhoTheyAre(f);
  finding.remedies.push_back(
      SeeWhoUsesIt(f.message, named ? "stop the other processes, or take another device"
                                    : "see who it is; stop it, or take another device"));
  if (named) {
    finding.remedies.back().saves = f.others_sum;
    finding.remedies.back().basis = Basis::kRecorded;
  }
  return {.found = std::move(finding), .why = OomCause::kNeighbour, .explains = strangers};
}

/// What an engine kept when it went to sleep is missing to whoever has the card then.
Opinion SleepingEngine(const Figures& f) {
  if (!f.message.engine_sleep) return {};
  const EngineSleep& sleep = *f.message.engine_sleep;
  Finding finding;
  finding.id = FindingId::kNeighbours;
  const Bytes missing = f.missing.value_or(0);
  finding.severity = f.capacity && missing > 0 && sleep.still_in_use >= missing
                         ? SeverityOf(f, sleep.still_in_use)
                         : Severity::kInfo;
  finding.title =
      fmt::format("When the engine went to sleep it freed {}, and {} of the card was still in use",
                  S(sleep.freed), S(sleep.still_in_use));
  finding.evidence = {
      "that is what it keeps (context, graphs, weights unless they go to the host) and what all "
      "others on the card had then"};
  if (finding.severity != Severity::kInfo) {
    finding.remedies = {
        Rule("let the sleeping engine keep less: level 2 gives back the weights too", Lever::kOther,
             {"llm.sleep(level=2)  # and the weights are loaded again when it wakes up"},
             "the weights have to be loaded again"),
        Rule("empty the trainer's cache before the engine wakes up", Lever::kOther,
             {"torch.cuda.empty_cache()"})};
  }
  return {.found = std::move(finding), .why = OomCause::kNeighbour, .explains = sleep.still_in_use};
}

std::string UsualOutside(const Figures& f) {
  if (*f.outside <= f.slack) {
    return "Memory of this process outside PyTorch: nothing beyond the rounding of the figures.";
  }
  return fmt::format("Memory of this process outside PyTorch: {}, no more than {} take.",
                     S(*f.outside), FactsOf(f.message).context);
}

/// What the driver counts for a process that has NCCL neither in its log nor beside it.
bool IsMuchForOneGpu(const Figures& f) {
  return f.own && f.reserved && *f.outside > kUsualOutsideAlone && !f.message.signs.communicates &&
         VendorOf(f.message) == Vendor::kNvidia;
}

Opinion OutsideTheAllocator(const Figures& f) {
  if (!f.outside || f.message.source == MessageSource::kTorchMps) return {};
  const VendorFacts& facts = FactsOf(f.message);
  if (*f.outside <= kUsualOutside && IsMuchForOneGpu(f)) {
    return {.excluded = RuledOut{
                FindingId::kOutsidePytorch,
                fmt::format("Memory of this process outside PyTorch: {}, no more than a CUDA "
                            "context and NCCL take. Without NCCL it would be much: 0.1 to 0.8 GiB "
                            "are usual then, and CUDA graphs, kernels with large stacks or a "
                            "library that allocates by itself take the rest.",
                            S(*f.outside))}};
  }
  if (*f.outside <= kUsualOutside) {
    return {.excluded = RuledOut{FindingId::kOutsidePytorch, UsualOutside(f)}};
  }
  // By elimination alone, what the allocator itself keeps is in it.
  if (!f.own) return {};
  Finding finding;
  finding.id = FindingId::kOutsidePytorch;
  // Only what is beyond the usual could be spared.
  const Bytes unusual = *f.outside - kUsualOutside;
  finding.severity = SeverityOf(f, unusual);
  finding.title = fmt::format(
      "{} of what this process uses is outside PyTorch's allocator, unusually much", S(*f.outside));
  finding.evidence = {
      fmt::format("{} in use by this process, {} held by PyTorch", S(*f.own), S(*f.held))};
  if (!f.reserved) finding.evidence.push_back("free blocks that PyTorch keeps are in it");
  if (f.message.signs.communicates && VendorOf(f.message) == Vendor::kNvidia) {
    finding.evidence.push_back("one NCCL communicator takes 0.1 to 1.6 GiB, a context 0.1 to 0.6");
    finding.remedies.push_back(Rule("fewer NCCL communicators, or smaller ones", Lever::kOther,
                                    {"export NCCL_MAX_NCHANNELS=8"}));
  } else {
    finding.evidence.push_back(
        fmt::format("{} take 0.1 to 1 GiB; the rest is of a library that asks the driver itself, "
                    "or of another framework in the same process",
                    facts.context));
  }
  if (VendorOf(f.message) == Vendor::kNvidia && !f.message.signs.windows) {
    finding.remedies.push_back(Rule("see which call takes it", Lever::kOther,
                                    {"nsys profile --cuda-memory-usage=true python train.py"}));
  }
  return {.found = std::move(finding), .why = OomCause::kOutside, .explains = unusual};
}

/// One request that outweighs what the program held: not a device that filled up.
Opinion OneLargeRequest(const Figures& f) {
  if (!f.requested || !f.capacity || f.missing.value_or(0) == 0) return {};
  const Bytes held = f.held.value_or(0);
  if (*f.requested * 4 < *f.capacity || *f.requested * 2 < held) return {};
  Finding finding;
  finding.id = FindingId::kCapacity;
  finding.severity = *f.requested > held ? Severity::kHigh : Severity::kMedium;
  finding.title = fmt::format("One request asks for {} at once, {:.0f} % of the {}",
                              S(*f.requested), 100 * f.ShareOfDevice(*f.requested), f.WholeWord());
  if (f.held) {
    finding.evidence = {fmt::format("PyTorch held {} before it", S(held))};
  }
  const std::string at = f.message.where.empty() ? "" : " at " + f.message.where;
  finding.remedies = {
      Rule(BatchMatters(f.message)
               ? fmt::format("find what is so large{}: a tensor of batch x length x vocabulary, "
                             "full attention scores, an image at full resolution",
                             at)
               : fmt::format("find what is so large{}: one parameter, or a buffer in which all of "
                             "them are joined",
                             at),
           Lever::kCheckSize)};
  for (Remedy& remedy : NeedLess(f.message)) finding.remedies.push_back(std::move(remedy));
  return {.found = std::move(finding), .why = OomCause::kTooLarge, .explains = *f.requested};
}

}  // namespace plimsoll
