#include "diagnose/verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {
std::string Capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  }
  return text;
}

std::string PhaseAt(const Phases& p, Position at) {
  if (at < 0 || p.timeline.events.empty()) return "";
  const std::size_t gap = p.GapOf(at);
  if (gap == p.backwards.size()) {
    const Event& event = p.timeline.events[static_cast<std::size_t>(at)];
    const std::uint16_t signs = p.stacks.of(event.stack).signs;
    if (p.backwards.empty()) {
      if (p.Trains()) return "before the first backward";
      return (signs & kSignModuleCall) != 0 ? "in a forward" : "";
    }
    if (at <= p.last_optimizer_end || (signs & kSignOptimizer) != 0)
      return fmt::format("in the optimizer of step {}", p.steps);
    if ((signs & kSignModuleCall) != 0 && p.IsTrainingCall(event.stack)) {
      return fmt::format("in the forward of step {}", p.steps + 1);
    }
    return fmt::format("after step {}", p.steps);
  }
  const Backward& b = p.backwards[gap];
  if (at >= b.start) return fmt::format("in the backward of step {}", b.step + 1);
  if (b.forward_start && at >= *b.forward_start) {
    return fmt::format("in the forward of step {}", b.step + 1);
  }
  if (gap == 0) return "before the first forward";
  const std::int32_t before = p.backwards[gap - 1].step + 1;
  if (at <= b.optimizer_end) return fmt::format("in the optimizer of step {}", before);
  if (before == b.step + 1) return fmt::format("in step {}", before);
  return fmt::format("between steps {} and {}", before, b.step + 1);
}

std::string LargestLines(const RankReport& rank, std::size_t most) {
  std::vector<AccountLine> lines = rank.account;
  std::erase_if(lines, [](const AccountLine& l) {
    return l.bytes <= 0 || l.what == AccountItem::kFree || l.what == AccountItem::kRounding;
  });
  std::stable_sort(lines.begin(), lines.end(),
                   [](const AccountLine& a, const AccountLine& b) { return a.bytes > b.bytes; });
  if (lines.size() > most) lines.resize(most);
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += i + 1 == lines.size() ? " and " : ", ";
    text += fmt::format("{} ({})", AccountItemWords(lines[i].what), FormatBytes(lines[i].bytes));
  }
  return text;
}

namespace {

/// "It ran out of memory 3 times", or that it did not, or that the record cannot tell.
std::string HowItEnded(const RankReport& rank) {
  if (rank.events == 0) {
    return "The record holds no history of allocations, only what was there when it was made. ";
  }
  if (rank.events < 2)
    return "The record holds a single event: too little to say how the job ran. ";
  const auto caught = std::count_if(rank.ooms.begin(), rank.ooms.end(),
                                    [](const OomReport& oom) { return oom.caught; });
  // That it did is a finding's to tell.
  return caught == 0 ? "The job did not run out of memory in this record. " : "";
}

std::string WhatHappened(const RankReport& rank, const std::string& during) {
  const auto fatal = std::find_if(rank.ooms.begin(), rank.ooms.end(),
                                  [](const OomReport& oom) { return oom.fatal; });
  if (rank.RanOut() && fatal != rank.ooms.end()) {
    const std::string by =
        fatal->in_backward ? ", for the gradient of a tensor of that size made at " : ", at ";
    return fmt::format("{} could not be allocated{}{}. ", FormatBytes(fatal->requested.value_or(0)),
                       during, fatal->where.empty() ? "" : by + fatal->where);
  }
  if (rank.instant.kind == InstantKind::kEvent) {
    return fmt::format("At event {}{} PyTorch held {}, of which {} were in tensors. ",
                       rank.instant.event.value_or(-1), during,
                       FormatBytes(rank.instant.reserved.value_or(0)),
                       FormatBytes(rank.instant.allocated.value_or(0)));
  }
  return HowItEnded(rank) + fmt::format("The peak is {} in tensors{}; PyTorch held {} at most. ",
                                        FormatBytes(rank.peak_allocated.value_or(0)), during,
                                        FormatBytes(rank.peak_reserved.value_or(0)));
}

/// The gravest finding's own sentence, and why the request failed where that is another one's.
std::string Causes(const std::vector<Finding>& findings) {
  if (findings.empty() || findings.front().severity > Severity::kMedium) return "";
  const Finding& gravest = findings.front();
  std::string text = Capitalised(gravest.title) + ". ";
  for (const Finding& f : findings) {
    const bool why = f.id == FindingId::kLimit || f.id == FindingId::kCapacity;
    if (why && &f != &gravest && f.severity == Severity::kHigh) {
      text += Capitalised(f.title) + ". ";
    }
  }
  return text;
}

}  // namespace

std::string TraceVerdict(const RankReport& rank, const std::vector<Finding>& findings) {
  const std::string during = rank.phase.empty() ? "" : " " + rank.phase;
  std::string text = WhatHappened(rank, during) + Causes(findings);
  const std::string lines = LargestLines(rank, 3);
  if (!lines.empty()) text += fmt::format("Most of the memory is {}.", lines);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace plimsoll
