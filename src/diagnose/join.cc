// Several files of one job become one answer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "diagnose/explain.h"
#include "diagnose/ranks.h"
#include "diagnose/verdict.h"

namespace plimsoll {
namespace {

bool IsTrace(const RankReport& r) { return r.peaks.has_value(); }

AccountLine* Find(RankReport& rank, AccountItem what) {
  for (AccountLine& line : rank.account) {
    if (line.what == what) return &line;
  }
  return nullptr;
}

/// The error text of a rank knows the card; its trace knows the tensors. Together the account
/// reaches from the tensors to the capacity.
void Complete(RankReport& trace, RankReport& text) {
  trace.capacity = text.capacity;
  trace.limit = text.limit;
  if (!trace.device) trace.device = text.device;
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

/// Pairs traces with error texts: by rank, or where there is one of each.
void CompleteTraces(std::vector<RankReport>& ranks) {
  std::vector<std::size_t> traces;
  std::vector<std::size_t> texts;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (IsTrace(ranks[i])) traces.push_back(i);
    if (!IsTrace(ranks[i]) && ranks[i].capacity) texts.push_back(i);
  }
  std::set<std::size_t, std::greater<>> used;
  for (std::size_t t : traces) {
    for (std::size_t x : texts) {
      const bool same_rank = ranks[t].rank && ranks[t].rank == ranks[x].rank;
      const bool only = traces.size() == 1 && texts.size() == 1;
      if ((!same_rank && !only) || !ranks[t].RanOut()) continue;
      if (used.contains(x) || !SameMoment(ranks[t], ranks[x])) continue;
      Complete(ranks[t], ranks[x]);
      used.insert(x);
      break;
    }
  }
  for (std::size_t x : used) ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(x));
}

/// What every rank shows is told once; of the rest, the gravest few of each kind.
std::vector<Finding> Gather(std::vector<Finding> all, std::size_t ranks) {
  constexpr std::size_t kMostOfAKind = 4;
  std::map<FindingId, std::vector<Finding>> by_id;
  std::vector<FindingId> order;
  for (Finding& f : all) {
    if (!by_id.contains(f.id)) order.push_back(f.id);
    by_id[f.id].push_back(std::move(f));
  }
  std::vector<Finding> result;
  for (const FindingId id : order) {
    std::vector<Finding>& same = by_id[id];
    std::stable_sort(same.begin(), same.end(),
                     [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
    std::set<int> shown_by;
    for (const Finding& f : same) shown_by.insert(f.rank.value_or(-1));
    if (ranks > 1 && shown_by.size() == ranks && id != FindingId::kRankImbalance &&
        id != FindingId::kDeviceImbalance) {
      Finding f = std::move(same.front());
      f.evidence.push_back(fmt::format("on all {} ranks; the figures are those of rank {}", ranks,
                                       f.rank.value_or(0)));
      f.rank = std::nullopt;
      result.push_back(std::move(f));
      continue;
    }
    const std::size_t left_out = same.size() > kMostOfAKind ? same.size() - kMostOfAKind : 0;
    same.resize(same.size() - left_out);
    if (left_out > 0) {
      same.back().evidence.push_back(fmt::format("and {} more ranks show the same", left_out));
    }
    std::move(same.begin(), same.end(), std::back_inserter(result));
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return result;
}

template <typename T>
void MoveInto(std::vector<T>& to, std::vector<T>& from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

/// Files whose names tell no rank are numbered as they were given.
void NumberRanks(std::vector<Explanation>& parts) {
  std::size_t traces = 0;
  bool named = false;
  std::set<std::string> files;
  for (const Explanation& part : parts) {
    for (const RankReport& r : part.ranks) {
      traces += IsTrace(r) ? 1 : 0;
      named |= r.rank.has_value();
      files.insert(r.file);
    }
  }
  // The devices of one file are one process.
  if (traces < 2 || named || files.size() < 2) return;
  int next = 0;
  for (Explanation& part : parts) {
    for (RankReport& r : part.ranks) {
      if (!IsTrace(r)) continue;
      r.rank = next++;
      for (Finding& f : part.findings) f.rank = r.rank;
    }
  }
}

/// The verdict of a job: who died, the gravest finding's own sentence, or that all is even.
std::string JoinedVerdict(const Explanation& joined, const std::string& own,
                          const std::string& first_dead, std::size_t dead,
                          const std::string& even) {
  std::string text;
  if (dead > 0 && joined.ranks.size() > 1) {
    text = fmt::format("{} of {} ran out of memory. ", dead, joined.ranks.size());
  }
  const bool grave =
      !joined.findings.empty() && joined.findings.front().severity <= Severity::kMedium;
  std::string rest = dead > 0 ? first_dead : own;
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
  text += rest;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

Explanation Join(std::vector<Explanation> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  NumberRanks(parts);
  Explanation joined;
  std::vector<Finding> findings;
  std::string first_dead;
  std::string own;
  bool dead_trace = false;
  bool own_trace = false;
  std::size_t dead = 0;
  for (Explanation& part : parts) {
    const auto died = std::count_if(part.ranks.begin(), part.ranks.end(), [](const RankReport& r) {
      return r.instant.kind == InstantKind::kOutOfMemory;
    });
    // A trace says more than an error text does.
    const bool trace = !part.ranks.empty() && IsTrace(part.ranks.front());
    if (died > 0 && (first_dead.empty() || (trace && !dead_trace))) {
      first_dead = part.verdict;
      dead_trace = trace;
    }
    if (own.empty() || (trace && !own_trace)) {
      own = part.verdict;
      own_trace = trace;
    }
    dead += static_cast<std::size_t>(died);
    MoveInto(joined.ranks, part.ranks);
    MoveInto(findings, part.findings);
    MoveInto(joined.arithmetic, part.arithmetic);
    MoveInto(joined.ruled_out, part.ruled_out);
    if (joined.record_next.empty()) joined.record_next = std::move(part.record_next);
  }
  const std::size_t before = joined.ranks.size();
  CompleteTraces(joined.ranks);
  dead -= std::min(dead, before - joined.ranks.size());
  const auto traces =
      static_cast<std::size_t>(std::count_if(joined.ranks.begin(), joined.ranks.end(), IsTrace));
  // Whoever has a trace needs no advice how to record one.
  if (traces > 0) joined.record_next.clear();
  std::string even;
  std::vector<Finding> odd = CompareRanks(joined.ranks, even);
  if (!odd.empty()) even.clear();
  MoveInto(findings, odd);
  joined.findings = Gather(std::move(findings), traces);
  TellRemediesOnce(joined.findings);
  joined.verdict = JoinedVerdict(joined, own, first_dead, dead, even);
  return joined;
}

}  // namespace plimsoll
