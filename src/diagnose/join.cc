// Several files of one job become one answer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <tuple>

#include "answer/shares.h"
#include "base/text.h"
#include "diagnose/explain.h"
#include "diagnose/findings/remedies.h"
#include "diagnose/logged/log_study.h"
#include "diagnose/ranks.h"
#include "diagnose/verdict.h"

namespace plimsoll {
namespace {

template <typename T>
void MoveInto(std::vector<T>& to, std::vector<T>& from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

bool IsTrace(const RankReport& r) { return r.peaks.has_value(); }

/// One of the processes that share a card. They are no ranks: each does something else.
bool IsNeighbour(const RankReport& r) { return !r.process.empty(); }

void NameProcesses(const std::vector<CardStudy>& cards, std::vector<Explanation>& parts) {
  for (const CardStudy& card : cards) {
    for (const CardProcess& process : card.report.processes) {
      for (Explanation& part : parts) {
        for (RankReport& r : part.ranks) {
          if (r.file != process.file || r.device != card.report.device) continue;
          r.process = process.name;
          // Of a file with several devices, a finding does not name its own.
          if (part.ranks.size() > 1) continue;
          for (Finding& f : part.findings) f.process = process.name;
        }
      }
    }
  }
}

AccountLine* Find(RankReport& rank, AccountItem what) {
  for (AccountLine& line : rank.account) {
    if (line.what == what) return &line;
  }
  return nullptr;
}

/// The error text of a rank knows the card; its trace knows the tensors. Together the account
/// reaches from the tensors to the capacity, or to the budget or the limit of the process.
void Complete(RankReport& trace, RankReport& text) {
  trace.capacity = text.capacity;
  trace.limit = text.limit;
  if (!trace.device) trace.device = text.device;
  if (trace.budget || trace.limit) {
    AddRoomLeft(trace);
    trace.notes.push_back("the capacity and the limit come from the error text in " + text.file);
    return;
  }
  for (const AccountItem what :
       {AccountItem::kOutside, AccountItem::kOtherProcesses, AccountItem::kFree}) {
    const AccountLine* line = Find(text, what);
    if (line == nullptr) continue;
    std::erase_if(trace.account, [&](const AccountLine& have) { return have.what == what; });
    trace.account.push_back(*line);
  }
  trace.notes.push_back("capacity and what lies outside PyTorch come from the error text in " +
                        text.file);
}

/// Both tell what PyTorch held when it gave up: a text of another run tells something else.
bool SameMoment(const RankReport& trace, const RankReport& text) {
  if (!trace.instant.reserved || !text.instant.reserved) return true;
  const double held = double(*trace.instant.reserved);
  return std::abs(double(*text.instant.reserved) - held) <= 0.05 * held;
}

/// A rank, and what the file that it comes from says by itself.
struct Told {
  RankReport rank;
  std::string verdict;
  std::size_t part = 0;
  Severity gravest = Severity::kInfo;
};

bool SaysWhyItFailed(const Finding& f) {
  return f.id == FindingId::kLimit || f.id == FindingId::kCapacity;
}

/// One limit is one finding: the trace tells why the request failed, the text how high the limit
/// is.
void TellLimitOnce(Told& trace, std::vector<Finding>& own, std::vector<Finding>& of_text) {
  // What fills a limit, a trace knows better.
  if (std::ranges::any_of(of_text, [](const Finding& f) { return f.id == FindingId::kLimit; })) {
    std::erase_if(of_text, [](const Finding& f) { return f.id != FindingId::kLimit; });
  }
  if (std::ranges::none_of(own, SaysWhyItFailed)) return;
  std::erase_if(of_text, SaysWhyItFailed);
  if (!trace.rank.limit || trace.rank.budget) return;
  for (Finding& f : own) {
    if (f.id != FindingId::kLimit || f.severity != Severity::kHigh) continue;
    f.title = fmt::format("a limit of {} on this process stops it", FormatBytes(*trace.rank.limit));
  }
  trace.verdict = TraceVerdict(trace.rank, own);
}

/// An error text beside the processes of a card is of the one that held as much when it ran out.
bool OfNeighbour(const RankReport& trace, const RankReport& text) {
  return IsNeighbour(trace) && text.instant.reserved &&
         text.device.value_or(trace.device.value_or(0)) == trace.device;
}

/// Pairs traces with error texts: by rank, or where there is one of each.
void CompleteTraces(std::vector<Told>& all, std::vector<Explanation>& parts) {
  std::vector<std::size_t> traces;
  std::vector<std::size_t> texts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (IsTrace(all[i].rank)) traces.push_back(i);
    if (!IsTrace(all[i].rank) && all[i].rank.capacity) texts.push_back(i);
  }
  std::set<std::size_t, std::greater<>> used;
  for (std::size_t t : traces) {
    RankReport& trace = all[t].rank;
    for (std::size_t x : texts) {
      RankReport& text = all[x].rank;
      const bool same_rank = trace.rank && trace.rank == text.rank;
      const bool only = traces.size() == 1 && texts.size() == 1;
      const bool paired = same_rank || only || OfNeighbour(trace, text);
      if (!paired || !trace.RanOut()) continue;
      if (used.contains(x) || !SameMoment(trace, text)) continue;
      Complete(trace, text);
      Explanation& own = parts[all[t].part];
      // Of a file with several devices, a finding does not name its own.
      if (own.ranks.size() == 1) TellLimitOnce(all[t], own.findings, parts[all[x].part].findings);
      used.insert(x);
      break;
    }
  }
  for (std::size_t x : used) all.erase(all.begin() + static_cast<std::ptrdiff_t>(x));
}

/// Which of them the answer speaks of: one that ran out before one that did not, then that which
/// the gravest finding names, then a trace before an error text, which says less, then that of the
/// gravest finding; else the first.
std::size_t ChooseShown(const std::vector<Told>& all, const std::vector<Finding>& findings) {
  const auto named = std::find_if(findings.begin(), findings.end(), [](const Finding& f) {
    return f.rank && f.severity != Severity::kInfo;
  });
  const auto weight = [&](const Told& told) {
    const bool is_named = named != findings.end() && told.rank.rank == named->rank;
    return std::tuple(told.rank.RanOut(), is_named, IsTrace(told.rank),
                      -static_cast<int>(told.gravest));
  };
  std::size_t shown = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (weight(all[i]) > weight(all[shown])) shown = i;
  }
  return shown;
}

/// Files whose names tell no rank are numbered as they were given.
void NumberRanks(std::vector<Explanation>& parts) {
  std::size_t traces = 0;
  bool named = false;
  std::set<std::string> files;
  for (const Explanation& part : parts) {
    for (const RankReport& r : part.ranks) {
      traces += IsTrace(r) && !IsNeighbour(r) ? 1 : 0;
      named |= r.rank.has_value();
      files.insert(r.file);
    }
  }
  // The devices of one file are one process.
  if (traces < 2 || named || files.size() < 2) return;
  int next = 0;
  for (Explanation& part : parts) {
    for (RankReport& r : part.ranks) {
      if (!IsTrace(r) || IsNeighbour(r)) continue;
      r.rank = next++;
      for (Finding& f : part.findings) f.rank = r.rank;
    }
  }
}

/// Ranks are GPUs to share the model over.
void ShareOver(std::size_t ranks, const RankReport& shown, std::vector<Finding>& findings) {
  if (ranks < 2) return;
  const Bytes held = BytesOf(shown.account, AccountItem::kParameters) +
                     BytesOf(shown.account, AccountItem::kGradients) +
                     BytesOf(shown.account, AccountItem::kOptimizerState);
  for (Finding& finding : findings) {
    for (Remedy& remedy : finding.remedies) {
      const bool estimated = remedy.basis == Basis::kEstimated && remedy.saves;
      if (remedy.lever == Lever::kSharding && estimated) remedy = ShardedOver(ranks, held);
    }
  }
}

/// Those of the cards, then of all parts, of the one called first before the others', and what
/// tells ranks apart.
std::vector<Finding> FindingsOf(const std::vector<Explanation>& parts, std::size_t first,
                                const std::vector<Finding>& of_cards,
                                const std::vector<Finding>& odd) {
  // What one process keeps from another explains what that one says of itself.
  std::vector<Finding> findings = of_cards;
  findings.insert(findings.end(), parts[first].findings.begin(), parts[first].findings.end());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == first) continue;
    findings.insert(findings.end(), parts[i].findings.begin(), parts[i].findings.end());
  }
  findings.insert(findings.end(), odd.begin(), odd.end());
  return findings;
}

/// The arithmetic of the error text that the answer speaks of; where it speaks of a trace, which
/// has none, that of the texts beside it.
void TakeArithmetic(std::vector<Explanation>& parts, std::size_t first, Explanation& joined) {
  const bool own = !parts[first].arithmetic.empty() || !parts[first].ruled_out.empty();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (own && i != first) continue;
    MoveInto(joined.arithmetic, parts[i].arithmetic);
    MoveInto(joined.ruled_out, parts[i].ruled_out);
  }
  // What one rank's figures exclude, another's may show.
  std::erase_if(joined.ruled_out, [&](const RuledOut& excluded) {
    return std::any_of(joined.findings.begin(), joined.findings.end(),
                       [&](const Finding& f) { return f.id == excluded.id; });
  });
}

/// ": rank 2" where a few ranks of several did; nothing where they have no numbers.
std::string WhichRanOut(const std::vector<RankReport>& ranks) {
  constexpr std::size_t kMostNamed = 4;
  std::vector<std::string> dead;
  if (std::ranges::all_of(ranks, IsNeighbour)) {
    for (const RankReport& r : ranks) {
      if (r.RanOut()) dead.push_back(r.process);
    }
    return dead.size() == ranks.size() ? "" : ": " + Joined(dead, ", ");
  }
  for (const RankReport& r : ranks) {
    if (!r.rank) return "";
    if (r.RanOut()) dead.push_back(std::to_string(*r.rank));
  }
  if (dead.size() == ranks.size() || dead.size() > kMostNamed) return "";
  return fmt::format(": rank{} {}", dead.size() == 1 ? "" : "s", Joined(dead, ", "));
}

/// "ranks" where all have a number; else whatever the files are of.
std::string_view NounFor(const std::vector<RankReport>& ranks) {
  if (std::ranges::all_of(ranks, IsNeighbour)) return "processes";
  const bool numbered = std::all_of(ranks.begin(), ranks.end(),
                                    [](const RankReport& r) { return r.rank.has_value(); });
  const bool one_file = std::all_of(ranks.begin(), ranks.end(), [&](const RankReport& r) {
    return r.file == ranks.front().file;
  });
  return numbered ? "ranks" : one_file ? "devices" : "files";
}

/// The verdict of a job: how many died, the gravest finding's own sentence, or that all is even;
/// and what the rank that is shown says by itself.
std::string JoinedVerdict(const Explanation& joined, std::string rest, const std::string& even) {
  std::string text;
  const auto dead = std::count_if(joined.ranks.begin(), joined.ranks.end(),
                                  [](const RankReport& r) { return r.RanOut(); });
  if (dead > 0 && joined.ranks.size() > 1) {
    const auto all = static_cast<std::ptrdiff_t>(joined.ranks.size());
    const std::string how_many = dead < all ? fmt::format("{} of {}", dead, all)
                                 : all == 2 ? "Both"
                                            : fmt::format("All {}", all);
    text = fmt::format("{} {} ran out of memory{}. ", how_many, NounFor(joined.ranks),
                       WhichRanOut(joined.ranks));
  }
  const bool grave =
      !joined.findings.empty() && joined.findings.front().severity <= Severity::kMedium;
  if (grave) {
    const Finding& gravest = joined.findings.front();
    const bool told = rest.find(gravest.title.substr(1)) != std::string::npos;
    if (!told) {
      text += Capitalised(gravest.title) + ". ";
      if (!gravest.evidence.empty()) text += Capitalised(gravest.evidence.front()) + ". ";
      // What one healthy rank would say of itself adds nothing to that.
      if (dead == 0) rest.clear();
    }
  } else if (!even.empty()) {
    text += even + " ";
  }
  // Nothing of what one process says of itself is true of the card.
  if (dead == 0 && !joined.cards.empty()) rest.clear();
  text += rest;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

/// Who the other processes are, and what they keep, a finding of the card tells.
void TellOthersOnce(std::vector<Explanation>& parts) {
  for (Explanation& part : parts) {
    std::erase_if(part.findings, [](const Finding& f) { return f.id == FindingId::kOtherProcess; });
  }
}

/// Of those that are ranks.
std::vector<Finding> OddRanks(const std::vector<RankReport>& all, std::string& even) {
  std::vector<RankReport> ranks = all;
  std::erase_if(ranks, IsNeighbour);
  std::vector<Finding> odd = CompareRanks(ranks, even);
  if (!odd.empty()) even.clear();
  return odd;
}

}  // namespace

Explanation Join(std::vector<Explanation> parts, std::vector<CardStudy> cards,
                 const std::vector<std::string>& notes) {
  if (parts.size() == 1) return std::move(parts.front());
  NameProcesses(cards, parts);
  NumberRanks(parts);
  Explanation joined;
  std::vector<Told> all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Explanation& part = parts[i];
    const Severity gravest =
        part.findings.empty() ? Severity::kInfo : part.findings.front().severity;
    for (RankReport& rank : part.ranks) {
      all.push_back({std::move(rank), part.verdict, i, gravest});
    }
    if (joined.record_next.empty()) joined.record_next = std::move(part.record_next);
  }
  CompleteTraces(all, parts);
  for (const Told& told : all) joined.ranks.push_back(told.rank);
  const auto traces =
      static_cast<std::size_t>(std::count_if(joined.ranks.begin(), joined.ranks.end(), IsTrace));
  const auto neighbours = static_cast<std::size_t>(
      std::count_if(joined.ranks.begin(), joined.ranks.end(), IsNeighbour));
  // Whoever has a trace needs no advice how to record one.
  if (traces > 0) joined.record_next = {};
  std::string even;
  const std::vector<Finding> odd = OddRanks(joined.ranks, even);
  std::vector<Finding> of_cards;
  for (CardStudy& card : cards) {
    if (!card.findings.empty()) TellOthersOnce(parts);
    even += (even.empty() ? "" : " ") + CardVerdict(card.report);
    MoveInto(of_cards, card.findings);
    joined.cards.push_back(std::move(card.report));
  }
  // Error texts have no traces, and are ranks all the same.
  const std::size_t ranks = traces > 0 ? traces - neighbours : joined.ranks.size();
  for (const Told& told : all) {
    if (!IsNeighbour(told.rank)) ShareOver(ranks, told.rank, parts[told.part].findings);
  }
  joined.shown = ChooseShown(all, MergeFindings(FindingsOf(parts, 0, of_cards, odd), ranks));
  // What several of them show is told with the figures of the first: that which is shown.
  const std::size_t first = all.empty() ? 0 : all[joined.shown].part;
  joined.findings = MergeFindings(FindingsOf(parts, first, of_cards, odd), ranks);
  TakeArithmetic(parts, first, joined);
  const std::string own = all.empty() ? parts.front().verdict : all[joined.shown].verdict;
  joined.verdict = JoinedVerdict(joined, own, even);
  JoinLogs(parts, joined);
  if (!joined.ranks.empty()) {
    std::vector<std::string>& shown = joined.ranks[joined.shown].notes;
    shown.insert(shown.end(), notes.begin(), notes.end());
  }
  return joined;
}

}  // namespace plimsoll
