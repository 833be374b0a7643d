#include "diagnose/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"

namespace plimsoll {
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
  if (rank.events == 0 && rank.prediction.empty()) {
    return fmt::format(
        "The record holds no history of allocations, so that no peak is known: when it was made {} "
        "were in tensors, and PyTorch held {}. ",
        FormatBytes(rank.peak_allocated.value_or(0)), FormatBytes(rank.peak_reserved.value_or(0)));
  }
  const std::string ended =
      rank.prediction.empty()
          ? HowItEnded(rank)
          : fmt::format("This is a predicted run ({}): nothing of it was recorded. ",
                        Printable(rank.prediction));
  return ended + fmt::format("The peak is {} in tensors{}; PyTorch held {} at most. ",
                             FormatBytes(rank.peak_allocated.value_or(0)), during,
                             FormatBytes(rank.peak_reserved.value_or(0)));
}

/// The gravest findings' own sentences, two at most: why memory was short, and why the request
/// failed. So a cause whose share is just below the next grade is told as well as one just above.
std::string Causes(const std::vector<Finding>& findings) {
  constexpr std::size_t kMostTold = 2;
  std::string causes;
  std::string failure;
  for (std::size_t i = 0; i < findings.size() && i < kMostTold; ++i) {
    const Finding& f = findings[i];
    if (f.severity > Severity::kMedium) break;
    const bool why_it_failed = f.id == FindingId::kLimit || f.id == FindingId::kCapacity;
    (why_it_failed ? failure : causes) += Capitalised(f.title) + ". ";
  }
  return causes + failure;
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
