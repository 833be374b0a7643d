#include "diagnose/error_texts/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/text.h"
#include "diagnose/error_texts/sentences.h"

namespace plimsoll {
namespace {

/// How much a message says about the end of a run: one that was survived least, a mere signal
/// hardly more, one with figures most.
int Weight(const OomMessage& m) {
  if (m.survived) return 0;
  const bool vague =
      m.source == MessageSource::kHipInUse || m.source == MessageSource::kDriverNotReady;
  if (m.source == MessageSource::kUnknown || m.host == HostEvent::kKilled || vague) return 1;
  return m.requested || m.allocated || m.capacity || m.host != HostEvent::kNone ? 3 : 2;
}

/// The messages of one rank or device. The last of those that say most ended it: programs catch
/// what comes before.
struct Group {
  std::vector<const OomMessage*> messages;

  const OomMessage& Decisive() const {
    const OomMessage* decisive = messages.front();
    for (const OomMessage* message : messages) {
      if (Weight(*message) >= Weight(*decisive)) decisive = message;
    }
    return *decisive;
  }
};

bool IsOfHost(const OomMessage& m) { return m.source == MessageSource::kHostMemory; }

/// The only message with a rank or a device that one without either can repeat: "cudaMalloc failed"
/// beside "failed to allocate CUDA1 buffer" is one failure.
const OomMessage* OnlyPlace(const std::vector<OomMessage>& messages) {
  const OomMessage* only = nullptr;
  for (const OomMessage& m : messages) {
    if (IsOfHost(m) || (!m.rank && !m.device)) continue;
    if (only != nullptr && (m.rank != only->rank || m.device != only->device)) return nullptr;
    only = &m;
  }
  return only;
}

/// In the order in which the ranks first appear in the text.
std::vector<Group> GroupByRank(const std::vector<OomMessage>& messages) {
  std::vector<Group> groups;
  std::map<std::pair<int, int>, std::size_t> index;
  const OomMessage* const only = OnlyPlace(messages);
  for (const OomMessage& message : messages) {
    const bool placed = message.rank || message.device;
    const OomMessage& place = !placed && only && !IsOfHost(message) ? *only : message;
    // A rank has one device as a rule; without a rank, the device tells processes apart.
    const std::pair<int, int> key = {place.rank.value_or(-1),
                                     place.rank ? -1 : place.device.value_or(-1)};
    const auto [at, fresh] = index.emplace(key, groups.size());
    if (fresh) groups.emplace_back();
    groups[at->second].messages.push_back(&message);
  }
  return groups;
}

/// A group with what was made of it, once.
struct Judged {
  explicit Judged(Group g) : group(std::move(g)), figures(group.Decisive()) {
    judgement = Judge(figures);
    // What the shortage broke for the rest of the process is to be known beside it.
    for (const OomMessage* each : group.messages) {
      if (each->source != MessageSource::kBrokenSegment || each == &group.Decisive()) continue;
      judgement.findings.push_back(Judge(Figures(*each)).findings.front());
      break;
    }
  }

  const OomMessage& message() const { return figures.message; }
  Severity severity() const {
    return std::ranges::min_element(judgement.findings, {}, &Finding::severity)->severity;
  }

  Group group;
  Figures figures;
  Judgement judgement;
};

/// What ends a run comes before what was survived, then the gravest; else as in the text.
std::vector<Judged> JudgeAll(const std::vector<OomMessage>& messages) {
  std::vector<Judged> judged;
  for (Group& group : GroupByRank(messages)) judged.emplace_back(std::move(group));
  std::vector<std::size_t> order(judged.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto key = [&](std::size_t i) {
      return std::pair(judged[i].message().survived, judged[i].severity());
    };
    return key(a) < key(b);
  });
  std::vector<Judged> sorted;
  for (std::size_t i : order) sorted.push_back(std::move(judged[i]));
  return sorted;
}

OomReport ReportOf(const OomMessage& message) {
  OomReport oom;
  oom.requested = message.requested;
  oom.fatal = !message.survived;
  oom.why = Judge(Figures(message)).why;
  oom.where = message.where;
  oom.device_free = message.free;
  return oom;
}

RankReport RankOf(const Recording& recording, const Judged& judged) {
  const OomMessage& message = judged.message();
  RankReport rank;
  rank.file = recording.file;
  rank.format = recording.format;
  rank.rank = message.rank;
  rank.device = message.device;
  rank.torch = message.torch && *message.torch != TorchVersions{} ? message.torch->ToString() : "";
  // A job that dies for lack of the host's memory has none of the device's to account for.
  if (message.source != MessageSource::kHostMemory) rank.capacity = message.capacity;
  // A text may be garbled: nobody is allowed more than there is. One block's limit is not the
  // process's.
  const bool possible =
      !message.allowed || !message.capacity || *message.allowed <= *message.capacity;
  if (possible && message.subject != "one block") rank.limit = message.allowed;
  rank.instant.kind = InstantKind::kOutOfMemory;
  rank.instant.allocated = message.allocated;
  rank.instant.reserved = judged.figures.reserved;
  TextAccount account = AccountOf(judged.figures, judged.judgement.why);
  rank.account = std::move(account.lines);
  rank.account_of = account.of;
  rank.notes = NotesOf(judged.figures);
  for (const OomMessage* each : judged.group.messages) rank.ooms.push_back(ReportOf(*each));
  return rank;
}

std::string OtherRanks(const std::vector<Judged>& all) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const OomMessage& message = all[i].message();
    if (message.survived) continue;
    if (message.rank) {
      names.push_back(fmt::format("rank {}", *message.rank));
    } else if (message.device) {
      names.push_back(fmt::format("GPU {}", *message.device));
    }
  }
  if (names.empty()) return {};
  const std::size_t shown = std::min<std::size_t>(names.size(), 8);
  std::string out = " Out of memory as well: " + Joined(std::span(names).first(shown), ", ");
  if (shown < names.size()) out += fmt::format(" and {} more", names.size() - shown);
  return out + ".";
}

/// The tables of memory_summary() beside the message know the peaks.
void AddSummaries(const Recording& recording, Explanation& explanation) {
  for (const MemorySummary& summary : recording.summaries) {
    for (RankReport& rank : explanation.ranks) {
      if (summary.device && rank.device && *summary.device != *rank.device) continue;
      for (const SummaryRow& row : summary.rows) {
        if (!row.pool.empty()) continue;
        // The table may be of an earlier moment than the message.
        if (row.metric == "Allocated memory") {
          rank.peak_allocated = std::max(row.peak, rank.instant.allocated.value_or(0));
        } else if (row.metric == "GPU reserved memory") {
          rank.peak_reserved = std::max(row.peak, rank.instant.reserved.value_or(0));
        }
      }
    }
  }
}

}  // namespace

Explanation ExplainMessages(const Recording& recording, std::optional<int> file_rank) {
  Explanation explanation;
  std::vector<OomMessage> messages = recording.messages;
  for (OomMessage& message : messages) {
    if (!message.rank) message.rank = file_rank;
  }
  const std::vector<Judged> all = JudgeAll(messages);
  if (all.empty()) return explanation;
  std::vector<Finding> findings;
  for (const Judged& judged : all) {
    explanation.ranks.push_back(RankOf(recording, judged));
    // What was survived is not why the run ended.
    const bool aside = judged.message().survived && !all.front().message().survived;
    for (Finding finding : judged.judgement.findings) {
      if (aside) finding.severity = std::max(finding.severity, Severity::kLow);
      findings.push_back(std::move(finding));
    }
  }
  const Judged& first = all.front();
  explanation.verdict = VerdictOf(first.figures, first.judgement) + OtherRanks(all);
  explanation.ruled_out = first.judgement.ruled_out;
  explanation.arithmetic = ArithmeticOf(first.figures);
  explanation.record_next = RecordNext(first.message());
  AddSummaries(recording, explanation);
  explanation.findings = MergeFindings(std::move(findings), all.size());
  const bool unknown = std::ranges::any_of(explanation.findings, [](const Finding& finding) {
    return std::ranges::any_of(finding.remedies, SavesUnknown);
  });
  if (unknown && first.message().source != MessageSource::kHostMemory) {
    explanation.savings = "How much a remedy without a figure saves is not known from this log";
  }
  // What one rank's figures exclude, another's may show.
  std::erase_if(explanation.ruled_out, [&](const RuledOut& excluded) {
    return std::any_of(explanation.findings.begin(), explanation.findings.end(),
                       [&](const Finding& f) { return f.id == excluded.id; });
  });
  for (const auto& [reason, count] : recording.skipped) {
    explanation.ranks.front().notes.push_back(fmt::format("{}: {}", reason, count));
  }
  return explanation;
}

}  // namespace plimsoll
