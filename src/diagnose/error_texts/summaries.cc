// torch.cuda.memory_summary() and torch.profiler's categories: totals without events.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/messages.h"
#include "diagnose/error_texts/sentences.h"

namespace plimsoll {
namespace {

const SummaryRow* FindRow(const MemorySummary& summary, std::string_view metric) {
  for (const SummaryRow& row : summary.rows) {
    if (row.metric == metric && row.pool.empty()) return &row;
  }
  return nullptr;
}

/// Peaks of different rows need not be of the same moment; the split is as good as that.
std::vector<AccountLine> AccountAtPeak(Bytes allocated, Bytes reserved,
                                       std::optional<Bytes> requested) {
  std::vector<AccountLine> account;
  const Bytes rounding = requested ? std::max<Bytes>(0, allocated - *requested) : 0;
  account.push_back({.what = AccountItem::kUnattributed,
                     .bytes = allocated - rounding,
                     .confidence = Confidence::kHigh,
                     .because = "in tensors; the table does not say what they are for"});
  if (rounding > 0) {
    account.push_back({.what = AccountItem::kRounding,
                       .bytes = rounding,
                       .confidence = Confidence::kMedium,
                       .because = "peak allocated less peak requested"});
  }
  if (reserved > allocated) {
    account.push_back({.what = AccountItem::kCached,
                       .bytes = reserved - allocated,
                       .confidence = Confidence::kLow,
                       .because = "peak reserved less peak allocated, which may be of two moments; "
                                  "how much of it is in pieces the table does not say"});
  }
  return account;
}

RankReport RankOf(const Recording& recording, const MemorySummary& summary) {
  RankReport rank;
  rank.file = recording.file;
  rank.format = recording.format;
  rank.device = summary.device;
  const SummaryRow* allocated = FindRow(summary, "Allocated memory");
  const SummaryRow* reserved = FindRow(summary, "GPU reserved memory");
  const SummaryRow* requested = FindRow(summary, "Requested memory");
  const SummaryRow* stuck = FindRow(summary, "Non-releasable memory");
  if (allocated != nullptr) rank.peak_allocated = rank.instant.allocated = allocated->peak;
  if (reserved != nullptr) rank.peak_reserved = rank.instant.reserved = reserved->peak;
  if (allocated != nullptr && reserved != nullptr) {
    rank.account =
        AccountAtPeak(allocated->peak, reserved->peak,
                      requested != nullptr ? std::optional(requested->peak) : std::nullopt);
    rank.notes.push_back(
        fmt::format("When the table was printed, {} was allocated and {} reserved.",
                    FormatBytes(allocated->current), FormatBytes(reserved->current)));
  }
  if (stuck != nullptr) {
    rank.notes.push_back(fmt::format("Free pieces inside segments in use: {} then, {} at most.",
                                     FormatBytes(stuck->current), FormatBytes(stuck->peak)));
  }
  rank.notes.push_back("The table's figures are whole KiB or MiB.");
  return rank;
}

std::string Times(std::int64_t count) {
  return count == 1 ? "once" : fmt::format("{} times", count);
}

std::string TitleOf(const MemorySummary& summary, bool loose) {
  if (summary.ooms > 0) {
    return fmt::format("It ran out of memory {}, {}", Times(summary.ooms),
                       loose ? "although much more was reserved than was ever allocated"
                             : "with tensors in most of what it held");
  }
  if (loose) return "It never ran out of memory, but much more is reserved than was ever allocated";
  if (summary.retries == 0) return "It never ran out of memory";
  return fmt::format(
      "It never ran out of memory, but {} the allocator had to give back its cache and try again, "
      "which is slow",
      Times(summary.retries));
}

Finding FindingOf(const MemorySummary& summary, const RankReport& rank) {
  const Bytes allocated = rank.peak_allocated.value_or(0);
  const Bytes reserved = rank.peak_reserved.value_or(0);
  const bool loose = reserved - allocated >= kGiB && (reserved - allocated) * 5 >= reserved;
  Finding finding{.id = loose              ? FindingId::kFragmentation
                        : summary.ooms > 0 ? FindingId::kCapacity
                                           : FindingId::kNone,
                  .severity = summary.ooms > 0  ? Severity::kHigh
                              : loose           ? Severity::kMedium
                              : summary.retries ? Severity::kLow
                                                : Severity::kInfo,
                  .title = TitleOf(summary, loose)};
  finding.evidence = {fmt::format("{} out-of-memory errors, {} retries of cudaMalloc", summary.ooms,
                                  summary.retries)};
  if (loose) {
    finding.remedies = {
        Rule("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", Lever::kAllocatorSetting)};
  } else if (summary.ooms > 0) {
    finding.remedies = {Rule("a smaller batch", Lever::kSmallerBatch)};
  }
  return finding;
}

/// "GPU 0 had at most 15.61 GiB in tensors and 16.20 GiB reserved."
std::string PeaksOf(const RankReport& rank) {
  std::string text = rank.device ? fmt::format("GPU {}", *rank.device) : "The device";
  text += " had at most " + FormatBytes(rank.peak_allocated.value_or(0)) + " in tensors";
  if (rank.peak_reserved) text += " and " + FormatBytes(*rank.peak_reserved) + " reserved";
  return text + ".";
}

constexpr std::array<Category, kProfilerCategories.size()> kCategoryOfProfiler = {
    Category::kParameters,  Category::kOptimizerState, Category::kInputs,
    Category::kTemporaries, Category::kActivations,    Category::kGradients,
    Category::kTemporaries,  // autograd detail: what the backward pass makes and drops
    Category::kUnattributed};

std::array<Bytes, kCategoryCount> ByCategory(const CategorySample& sample) {
  std::array<Bytes, kCategoryCount> bytes{};
  for (std::size_t i = 0; i < sample.bytes.size() && i < kCategoryOfProfiler.size(); ++i) {
    // A recording that begins mid-run may free more than it saw made.
    bytes[static_cast<std::size_t>(kCategoryOfProfiler[i])] += std::max<Bytes>(0, sample.bytes[i]);
  }
  return bytes;
}

Bytes Total(const CategorySample& sample) {
  Bytes total = 0;
  for (Bytes bytes : sample.bytes) total += std::max<Bytes>(0, bytes);
  return total;
}

/// "cuda:1" -> 1.
std::optional<int> DeviceIndex(const std::string& device) {
  const std::size_t colon = device.find(':');
  if (colon == std::string::npos) return {};
  int index = 0;
  const char* end = device.data() + device.size();
  const auto [p, error] = std::from_chars(device.data() + colon + 1, end, index);
  return error == std::errc() && p == end ? std::optional(index) : std::nullopt;
}

RankReport RankOf(const Recording& recording, const CategoryTimeline& timeline,
                  const CategorySample& peak) {
  RankReport rank;
  rank.file = recording.file;
  rank.format = recording.format;
  rank.device = DeviceIndex(timeline.device);
  rank.events = static_cast<std::int64_t>(timeline.samples.size());
  rank.instant.time_us = peak.time_us;
  rank.instant.allocated = rank.peak_allocated = Total(peak);
  rank.peaks.emplace();
  for (const CategorySample& sample : timeline.samples) {
    const std::array<Bytes, kCategoryCount> bytes = ByCategory(sample);
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      (*rank.peaks)[c] = std::max((*rank.peaks)[c], bytes[c]);
    }
  }
  const std::array<Bytes, kCategoryCount> at_peak = ByCategory(peak);
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    if (at_peak[c] == 0) continue;
    rank.account.push_back({.what = ItemOf(static_cast<Category>(c)),
                            .bytes = at_peak[c],
                            .confidence = Confidence::kHigh,
                            .because = "torch.profiler's own category, from the flow of data"});
  }
  rank.notes.push_back(
      "The profiler's timeline has no reserved memory and no stacks: what the allocator holds "
      "beyond the tensors is not in it.");
  return rank;
}

std::string Largest(const RankReport& rank) {
  const auto most = std::max_element(
      rank.account.begin(), rank.account.end(),
      [](const AccountLine& a, const AccountLine& b) { return a.bytes < b.bytes; });
  if (most == rank.account.end()) return {};
  return fmt::format(" The largest part is {}, {}.", AccountItemWords(most->what),
                     FormatBytes(most->bytes));
}

/// Whether an error message beside the table is about the same device: ExplainMessages then has its
/// peaks.
bool IsToldByMessages(const Recording& recording, const MemorySummary& summary) {
  return std::any_of(recording.messages.begin(), recording.messages.end(),
                     [&](const OomMessage& m) {
                       return !m.device || !summary.device || *m.device == *summary.device;
                     });
}

}  // namespace

Explanation ExplainSummaries(const Recording& recording) {
  Explanation explanation;
  for (const MemorySummary& summary : recording.summaries) {
    if (IsToldByMessages(recording, summary)) continue;
    explanation.ranks.push_back(RankOf(recording, summary));
    explanation.findings.push_back(FindingOf(summary, explanation.ranks.back()));
  }
  if (explanation.ranks.empty()) return explanation;
  explanation.findings = InOrder(std::move(explanation.findings));
  explanation.verdict =
      fmt::format("{} {}. The table does not say what the memory is for.",
                  PeaksOf(explanation.ranks.front()), explanation.findings.front().title);
  explanation.record_next = {.by_run = true, .trains = true};
  return explanation;
}

Explanation ExplainCategories(const Recording& recording) {
  Explanation explanation;
  if (!recording.categories || recording.categories->samples.empty()) return explanation;
  const CategoryTimeline& timeline = *recording.categories;
  const auto peak = std::max_element(
      timeline.samples.begin(), timeline.samples.end(),
      [](const CategorySample& a, const CategorySample& b) { return Total(a) < Total(b); });
  explanation.ranks.push_back(RankOf(recording, timeline, *peak));
  const RankReport& rank = explanation.ranks.front();
  explanation.verdict = fmt::format("At its peak {} held {} in tensors.{}",
                                    timeline.device.empty() ? "the device" : timeline.device,
                                    FormatBytes(*rank.peak_allocated), Largest(rank));
  Finding none;
  none.id = FindingId::kNone;
  none.title = "The timeline tells how much, not why";
  none.evidence = {fmt::format("{} samples, the peak is {}", timeline.samples.size(),
                               FormatBytes(*rank.peak_allocated))};
  explanation.findings.push_back(std::move(none));
  explanation.record_next = {.by_run = true, .trains = true};
  return explanation;
}

}  // namespace plimsoll
