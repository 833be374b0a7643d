#include "diagnose/error_texts/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

/// From what share of the device on tensors are called the cause.
constexpr double kMostlyTensors = 0.75;
/// From what share on they are told of although something else explains what was missing.
constexpr double kNearlyAllTensors = 0.85;

/// The text has no figures that would tell.
Finding NoCause(const Figures& f) {
  Finding finding;
  finding.id = FindingId::kNone;
  finding.severity = Severity::kInfo;
  finding.title = f.tensors ? "The figures of the text do not tell why"
                            : "The text gives no figures that tell why";
  if (f.message.subject == "every batch size") {
    finding.title = "Smaller and smaller batches were tried, and all of them ran out of memory";
  }
  if (f.message.subject == "the weights") {
    finding.title = "The weights do not fit on the devices that the program may use";
  }
  if (f.message.source == MessageSource::kTorchMps) {
    finding.title = "The memory that an Apple GPU may use of the host's is full";
  }
  finding.evidence = {f.capacity
                          ? "what fills the device is not in the text"
                          : "neither the size of the device nor what fills it is in the text"};
  finding.remedies = NeedLess(f.message);
  return finding;
}

/// The tensors themselves: what is left when nothing else explains it.
std::optional<Finding> Tensors(const Figures& f, bool explained) {
  if (!f.held) return {};
  const Bytes tensors = f.tensors.value_or(*f.held);
  const double share = f.ShareOfDevice(tensors);
  if (f.capacity && share < (explained ? kNearlyAllTensors : kMostlyTensors)) return {};
  if (!f.capacity && explained) return {};
  Finding finding;
  finding.id = FindingId::kCapacity;
  finding.severity = explained || !f.capacity ? Severity::kMedium : Severity::kHigh;
  const std::string_view what = f.tensors ? "tensors fill" : "allocator fills";
  finding.title =
      f.capacity ? fmt::format("PyTorch's {} the {}: {} of its {}", what, f.WholeWord(),
                               FormatBytes(tensors), FormatBytes(*f.capacity))
                 : fmt::format("PyTorch holds {}, and no more could be had", FormatBytes(tensors));
  if (f.capacity)
    finding.evidence = {fmt::format("{:.0f} % of the {}", 100 * share, f.WholeWord())};
  finding.remedies = NeedLess(f.message);
  return finding;
}

/// The causes that exclude all others, in the order in which they are asked.
constexpr auto kDecisive =
    std::to_array({BugInSize, LargerThanTheDevice, ALimit, Oversubscription, FreeSuffices});
constexpr auto kContributing =
    std::to_array({KeptPredictions, InFreePieces, PrivatePools, SleepingEngine, OtherProcesses,
                   OutsideTheAllocator, OneLargeRequest});

/// Collects opinions.
class Court {
 public:
  explicit Court(const Figures& figures) : f_(figures) {}

  /// True where the cause was found.
  bool Hear(Opinion opinion) {
    if (opinion.excluded) ruled_out_.push_back(std::move(*opinion.excluded));
    if (!opinion.found) return false;
    opinion.found->rank = f_.message.rank;
    if (!BatchMatters(f_.message)) {
      std::erase_if(opinion.found->remedies, [](const Remedy& remedy) {
        return remedy.lever == Lever::kSmallerBatch || remedy.lever == Lever::kCheckpointing;
      });
    }
    for (Remedy& remedy : opinion.found->remedies) AdaptToDevice(f_.message, remedy.code);
    found_.push_back(std::move(opinion));
    return true;
  }

  bool Explained() const {
    return std::any_of(found_.begin(), found_.end(),
                       [](const Opinion& o) { return o.found->severity == Severity::kHigh; });
  }

  Judgement Decide() && {
    // What the program caught and survived is not grave.
    for (Opinion& opinion : found_) {
      if (f_.message.signs.went_on && opinion.found->severity == Severity::kHigh) {
        opinion.found->severity = Severity::kMedium;
      }
    }
    std::stable_sort(found_.begin(), found_.end(), [](const Opinion& a, const Opinion& b) {
      if (a.found->severity != b.found->severity) return a.found->severity < b.found->severity;
      return a.explains > b.explains;
    });
    if (found_.empty()) Hear({.found = NoCause(f_)});
    TellStageFirst(*found_.front().found);
    Judgement judgement;
    judgement.why = found_.front().why;
    for (Opinion& opinion : found_) judgement.findings.push_back(std::move(*opinion.found));
    judgement.ruled_out = std::move(ruled_out_);
    return judgement;
  }

 private:
  /// What the traceback shows comes before what figures suggest, where the memory is this program's
  /// own.
  void TellStageFirst(Finding& finding) const {
    if (finding.id != FindingId::kFragmentation && finding.id != FindingId::kCapacity &&
        finding.id != FindingId::kEvalSpike) {
      return;
    }
    std::vector<Remedy> first = WithModel(f_.message, OwnWaysOfStage(f_.message));
    for (Remedy& remedy : first) AdaptToDevice(f_.message, remedy.code);
    std::erase_if(finding.remedies, [&](const Remedy& remedy) {
      return std::any_of(first.begin(), first.end(),
                         [&](const Remedy& own) { return own.change == remedy.change; });
    });
    finding.remedies.insert(finding.remedies.begin(), std::make_move_iterator(first.begin()),
                            std::make_move_iterator(first.end()));
  }

  const Figures& f_;
  std::vector<Opinion> found_;
  std::vector<RuledOut> ruled_out_;
};

Judgement WhatFills(const Figures& f, Court court) {
  for (auto* cause : kContributing) court.Hear(cause(f));
  if (auto finding = Tensors(f, court.Explained())) {
    court.Hear({.found = std::move(finding), .why = OomCause::kCapacity});
  }
  return std::move(court).Decide();
}

/// Where the limit is meant, it is the card: what fills that is told behind the limit.
void AddWhatFillsLimit(const Figures& f, Judgement& judgement) {
  if (f.message.source == MessageSource::kTorchMps || !f.requested) return;
  const std::optional<Figures> within = WithinLimit(f);
  if (!within) return;
  for (Finding& finding : WhatFills(*within, Court(*within)).findings) {
    if (finding.id == FindingId::kNone) continue;
    finding.severity = std::max(finding.severity, Severity::kMedium);
    judgement.findings.push_back(std::move(finding));
  }
}

Judgement JudgeTorch(const Figures& f) {
  Court court(f);
  for (auto* cause : kDecisive) {
    if (!court.Hear(cause(f))) continue;
    Judgement judgement = std::move(court).Decide();
    if (judgement.why == OomCause::kLimit) AddWhatFillsLimit(f, judgement);
    return judgement;
  }
  return WhatFills(f, std::move(court));
}

}  // namespace

Judgement Judge(const Figures& f) {
  if (f.IsTorch()) return JudgeTorch(f);
  Court court(f);
  if (!court.Hear(BugInSize(f))) {
    court.Hear(f.message.source == MessageSource::kHostMemory ? OfHost(f) : OfLibrary(f));
  }
  Judgement judgement = std::move(court).Decide();
  if (judgement.why == OomCause::kHost || judgement.why == OomCause::kAddressSpace ||
      judgement.why == OomCause::kBugInSize) {
    judgement.ruled_out.push_back(
        {FindingId::kCapacity, "A full GPU: the text is not about the device's memory."});
  }
  return judgement;
}

}  // namespace plimsoll
