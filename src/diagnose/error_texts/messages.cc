#include "diagnose/error_texts/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "diagnose/error_texts/sentences.h"

namespace plimsoll {
namespace {

/// The messages of one rank or device, and the one that ended it.
struct Group {
  std::vector<const OomMessage*> messages;

  const OomMessage& Decisive() const {
    for (const OomMessage* message : messages) {
      if (!message->survived) return *message;
    }
    return *messages.back();
  }
};

/// In the order in which the ranks first appear in the text.
std::vector<Group> GroupByRank(const std::vector<OomMessage>& messages) {
  std::vector<Group> groups;
  std::map<std::pair<int, int>, std::size_t> index;
  for (const OomMessage& message : messages) {
    // A rank has one device as a rule; without a rank, the device tells processes apart.
    const std::pair<int, int> key = {message.rank.value_or(-1),
                                     message.rank ? -1 : message.device.value_or(-1)};
    const auto [at, fresh] = index.emplace(key, groups.size());
    if (fresh) groups.emplace_back();
    groups[at->second].messages.push_back(&message);
  }
  return groups;
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

RankReport RankOf(const Recording& recording, const Group& group) {
  const OomMessage& message = group.Decisive();
  const Figures figures(message);
  RankReport rank;
  rank.file = recording.file;
  rank.format = recording.format;
  rank.rank = message.rank;
  rank.device = message.device;
  rank.torch = message.wording.starts_with("PyTorch ") ? message.wording.substr(8) : "";
  rank.capacity = message.capacity;
  rank.limit = message.allowed;
  rank.instant.kind = InstantKind::kOutOfMemory;
  rank.instant.allocated = message.allocated;
  rank.instant.reserved = figures.reserved;
  rank.account = AccountOf(figures);
  rank.notes = NotesOf(figures);
  for (const OomMessage* each : group.messages) rank.ooms.push_back(ReportOf(*each));
  return rank;
}

/// The same cause on many ranks is one finding, with the figures of the first.
class Findings {
 public:
  void Add(std::vector<Finding> more) {
    for (Finding& finding : more) {
      const auto [at, fresh] = index_.emplace(finding.id, findings_.size());
      if (fresh) {
        findings_.push_back(std::move(finding));
        repeats_.push_back(0);
        continue;
      }
      Finding& first = findings_[at->second];
      first.severity = std::min(first.severity, finding.severity);
      if (first.rank != finding.rank) ++repeats_[at->second];
    }
  }

  std::vector<Finding> Take() {
    for (std::size_t i = 0; i < findings_.size(); ++i) {
      if (repeats_[i] == 0) continue;
      findings_[i].evidence.push_back(
          fmt::format("the same on {} more; the figures are those of {}", repeats_[i],
                      NameOf(findings_[i].rank)));
      findings_[i].rank.reset();
    }
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
    return std::move(findings_);
  }

 private:
  static std::string NameOf(std::optional<int> rank) {
    return rank ? fmt::format("rank {}", *rank) : "the first";
  }

  std::vector<Finding> findings_;
  std::vector<int> repeats_;
  std::map<FindingId, std::size_t> index_;
};

std::string OtherRanks(const std::vector<Group>& groups) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i < groups.size(); ++i) {
    const OomMessage& message = groups[i].Decisive();
    if (message.survived) continue;
    if (message.rank) {
      names.push_back(fmt::format("rank {}", *message.rank));
    } else if (message.device) {
      names.push_back(fmt::format("GPU {}", *message.device));
    }
  }
  if (names.empty()) return {};
  const std::size_t shown = std::min<std::size_t>(names.size(), 8);
  std::string out = fmt::format(
      " It was the first in the text; out of memory as well: {}",
      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
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
        if (row.metric == "Allocated memory") rank.peak_allocated = row.peak;
        if (row.metric == "GPU reserved memory") rank.peak_reserved = row.peak;
      }
    }
  }
}

}  // namespace

Explanation ExplainMessages(const Recording& recording) {
  Explanation explanation;
  std::vector<Group> groups = GroupByRank(recording.messages);
  if (groups.empty()) return explanation;
  // A text that ends a run comes before warnings that were survived.
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.Decisive().survived < b.Decisive().survived;
  });
  Findings findings;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const OomMessage& message = groups[i].Decisive();
    const Figures figures(message);
    Judgement judgement = Judge(figures);
    explanation.ranks.push_back(RankOf(recording, groups[i]));
    findings.Add(std::move(judgement.findings));
    if (i > 0) continue;
    explanation.verdict = VerdictOf(figures, judgement);
    explanation.ruled_out = std::move(judgement.ruled_out);
    explanation.arithmetic = ArithmeticOf(figures);
    explanation.record_next = RecordNext(message);
  }
  explanation.verdict += OtherRanks(groups);
  AddSummaries(recording, explanation);
  explanation.findings = findings.Take();
  for (const auto& [reason, count] : recording.skipped) {
    explanation.ranks.front().notes.push_back(fmt::format("{}: {}", reason, count));
  }
  return explanation;
}

}  // namespace plimsoll
