#include "answer/invariants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace plimsoll {
namespace {

/// Printed figures have two decimals: a sum of them may miss by a few units of the last one.
constexpr Bytes kPrinted = 64 * kMiB;

class Checker {
 public:
  explicit Checker(const Explanation& answer) : answer_(answer) {}

  std::vector<std::string> Run() {
    for (const RankReport& rank : answer_.ranks) {
      CheckFigures(rank);
      CheckAccount(rank);
      CheckHolders(rank);
    }
    CheckOrder();
    CheckVerdict();
    CheckRuledOut();
    if (answer_.host) CheckHost(*answer_.host);
    for (const Finding& finding : answer_.findings) {
      CheckSureness(finding);
      CheckRemedies(finding);
    }
    return std::move(broken_);
  }

 private:
  void Require(bool holds, std::string sentence) {
    if (!holds) broken_.push_back(std::move(sentence));
  }

  /// A trace's figures are exact; those of a text are as printed.
  static Bytes Slack(const RankReport& rank) { return rank.peaks ? 0 : kPrinted; }

  void CheckFigures(const RankReport& rank) {
    const Instant& i = rank.instant;
    const auto at_most = [&](const std::optional<Bytes>& low, const std::optional<Bytes>& high,
                             const char* what) {
      if (low && high) {
        Require(*low <= *high + Slack(rank), fmt::format("{}: {} > {}", what, *low, *high));
      }
    };
    at_most(i.allocated, i.reserved, "allocated exceeds reserved");
    at_most(i.allocated, rank.peak_allocated, "allocated at the instant exceeds its peak");
    at_most(i.reserved, rank.peak_reserved, "reserved at the instant exceeds its peak");
    at_most(rank.limit, rank.capacity, "the limit exceeds the capacity");
    for (const OomReport& oom : rank.ooms) {
      Require(!(oom.fatal && oom.caught), "an out-of-memory is both fatal and caught");
    }
  }

  void CheckAccount(const RankReport& rank) {
    std::set<AccountItem> seen;
    Bytes reserved = 0;
    for (const AccountLine& line : rank.account) {
      const std::string_view name = AccountItemName(line.what);
      Require(line.bytes >= 0, fmt::format("the account's line {} is negative", name));
      Require(seen.insert(line.what).second, fmt::format("the account has two lines {}", name));
      if (IsReserved(line.what)) reserved += line.bytes;
    }
    if (rank.account.empty() || !rank.instant.reserved) return;
    const Bytes difference = std::abs(reserved - *rank.instant.reserved);
    Require(difference <= Slack(rank),
            fmt::format("the account adds up to {} reserved, the instant says {}", reserved,
                        *rank.instant.reserved));
  }

  void CheckHolders(const RankReport& rank) {
    Bytes sum = 0;
    Bytes last = rank.holders.empty() ? 0 : rank.holders.front().bytes;
    for (const Holder& holder : rank.holders) {
      Require(holder.others > 0 || holder.bytes <= last, "the holders are not in order");
      last = holder.bytes;
      sum += holder.bytes;
    }
    if (!rank.holders.empty() && rank.instant.allocated) {
      Require(sum <= *rank.instant.allocated, "the holders hold more than is allocated");
    }
  }

  void CheckOrder() {
    Require(
        std::is_sorted(answer_.findings.begin(), answer_.findings.end(),
                       [](const Finding& a, const Finding& b) { return a.severity < b.severity; }),
        "the findings are not in order of gravity");
  }

  /// The verdict is the gravest finding's own sentence.
  void CheckVerdict() {
    Require(!answer_.verdict.empty(), "there is no verdict");
    Require(answer_.ranks.empty() || answer_.shown < answer_.ranks.size(),
            "the rank to be shown is none of the ranks");
    if (answer_.shown < answer_.ranks.size() && !answer_.ranks[answer_.shown].RanOut()) {
      Require(std::none_of(answer_.ranks.begin(), answer_.ranks.end(),
                           [](const RankReport& r) { return r.RanOut(); }),
              "a rank ran out, and another is shown");
    }
    if (answer_.findings.empty() || answer_.findings.front().severity > Severity::kMedium) return;
    // A sentence may begin with a capital letter in one place and not in the other.
    const std::string& title = answer_.findings.front().title;
    Require(!title.empty() && answer_.verdict.find(title.substr(1)) != std::string::npos,
            fmt::format("the verdict does not tell the gravest finding: '{}'", title));
  }

  void CheckHost(const HostReport& host) {
    Require(host.together <= host.peak_together, "the job held more at an instant than at most");
    for (const HostKill& kill : host.kills) {
      Require(kill.process < host.processes.size(), "a process was killed that is not listed");
      Require(!kill.because.empty(), "it is not said how a kill is known");
    }
    for (const HostProcessReport& process : host.processes) {
      if (!process.then) continue;
      Require(process.then->shared <= process.then->resident, "more is shared than resident");
      Require(process.then->resident <= process.peak_resident, "more is resident than at most");
    }
  }

  void CheckRuledOut() {
    for (const RuledOut& excluded : answer_.ruled_out) {
      for (const Finding& finding : answer_.findings) {
        Require(finding.id != excluded.id || finding.severity == Severity::kInfo,
                fmt::format("{} is found and ruled out", FindingName(finding.id)));
      }
    }
  }

  /// Nothing certain above and doubtful below.
  void CheckSureness(const Finding& finding) {
    static const std::map<FindingId, AccountItem> kRestsOn = {
        {FindingId::kOtherProcess, AccountItem::kOtherProcesses},
        {FindingId::kStrayContext, AccountItem::kOtherProcesses},
        {FindingId::kOutsidePytorch, AccountItem::kOutside}};
    const auto line = kRestsOn.find(finding.id);
    if (finding.severity != Severity::kHigh || line == kRestsOn.end()) return;
    for (const RankReport& rank : answer_.ranks) {
      if (finding.rank && rank.rank != finding.rank) continue;
      for (const AccountLine& have : rank.account) {
        Require(have.what != line->second || have.confidence != Confidence::kLow,
                fmt::format("{} is certain as a finding and doubtful in the account",
                            FindingName(finding.id)));
      }
    }
  }

  void CheckRemedies(const Finding& finding) {
    Require(!finding.title.empty(), fmt::format("{} has no title", FindingName(finding.id)));
    for (const Remedy& remedy : finding.remedies) {
      const bool own = remedy.lever == Lever::kOther || remedy.lever == Lever::kAllocatorSetting;
      Require(told_.insert({remedy.lever, own ? remedy.change : ""}).second,
              fmt::format("a remedy is told twice: '{}'", remedy.change));
      if (remedy.saves) {
        Require(remedy.avoid || *remedy.saves >= 0,
                fmt::format("a remedy saves less than nothing: '{}'", remedy.change));
        Require(*remedy.saves <= MostThatCanBeSaved(finding, remedy) + kPrinted,
                fmt::format("'{}' saves more than there is to save", remedy.change));
      }
      // Of neighbours, what a turn needs is known from the turn before.
      Require(remedy.effect != Effect::kFits || finding.id == FindingId::kNeighbours ||
                  HasCompleteStep(finding.rank),
              fmt::format("'{}' is said to fit although no step was completed", remedy.change));
    }
  }

  /// A setting of the allocator saves from what is reserved and not used, or from what blocks are
  /// larger than their tensors; the rest from what is held; what is about the host, from what that
  /// has.
  Bytes MostThatCanBeSaved(const Finding& finding, const Remedy& remedy) const {
    if (finding.id == FindingId::kHostMemory && answer_.host) return answer_.host->peak_together;
    const std::optional<int>& rank = finding.rank;
    Bytes most = 0;
    for (const RankReport& r : answer_.ranks) {
      if (rank && r.rank != rank) continue;
      if (finding.id == FindingId::kPinnedRounding) {
        most = std::max(most, r.pinned ? std::max(r.pinned->reserved, r.pinned->peak_reserved) : 0);
        continue;
      }
      if (finding.id == FindingId::kRoundingLoss) {
        for (const AccountLine& line : r.account) {
          if (line.what == AccountItem::kRounding) most = std::max(most, line.bytes);
        }
        continue;
      }
      if (remedy.lever == Lever::kAllocatorSetting) {
        most = std::max(most, r.peak_reserved.value_or(r.instant.reserved.value_or(0)) -
                                  r.instant.allocated.value_or(0));
        continue;
      }
      Bytes held = 0;
      for (const AccountLine& line : r.account) {
        held += line.what == AccountItem::kFree ? 0 : line.bytes;
      }
      most = std::max({most, held, r.peak_allocated.value_or(0), r.instant.reserved.value_or(0)});
    }
    return most;
  }

  bool HasCompleteStep(const std::optional<int>& rank) const {
    return std::any_of(answer_.ranks.begin(), answer_.ranks.end(), [&](const RankReport& r) {
      return (!rank || r.rank == rank) && r.complete_steps > 0;
    });
  }

  const Explanation& answer_;
  std::vector<std::string> broken_;
  std::set<std::pair<Lever, std::string>> told_;
};

}  // namespace

std::vector<std::string> BrokenInvariants(const Explanation& answer) {
  return Checker(answer).Run();
}

}  // namespace plimsoll
