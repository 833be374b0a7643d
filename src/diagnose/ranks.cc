#include "diagnose/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "answer/severity.h"
#include "base/median.h"

namespace plimsoll {
namespace {

/// Even ranks of one job differ by a hundredth of a per cent; from here on it is worth a word.
constexpr double kLeastDifference = 0.02;
constexpr double kTimesSpread = 5;

struct Deviation {
  std::string what;
  Bytes bytes = 0;
};

/// The category in which a rank differs most from the median rank, by the categories' own peaks:
/// they do not depend on where each rank's peak lies in the step.
Deviation ByCategory(const std::vector<const RankReport*>& ranks, const RankReport& odd) {
  Deviation most;
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    std::vector<Bytes> all;
    for (const RankReport* r : ranks) all.push_back((*r->peaks)[c]);
    const Bytes difference = (*odd.peaks)[c] - LowerMedian(all);
    if (std::abs(difference) > std::abs(most.bytes)) {
      most = {std::string(CategoryName(static_cast<Category>(c))), difference};
    }
  }
  return most;
}

using HeldByLine = std::map<std::pair<std::string, Category>, Bytes>;

HeldByLine ByLine(const RankReport& rank) {
  HeldByLine held;
  for (const Holder& h : rank.holders) held[{h.where, h.category}] += h.bytes;
  return held;
}

/// The source line that holds most more than on the other ranks.
Deviation ByHolder(const std::vector<const RankReport*>& ranks, const RankReport& odd) {
  std::vector<HeldByLine> all;
  for (const RankReport* r : ranks) all.push_back(ByLine(*r));
  Deviation most;
  for (const auto& [line, bytes] : ByLine(odd)) {
    std::vector<Bytes> others;
    for (const HeldByLine& held : all) {
      const auto found = held.find(line);
      others.push_back(found == held.end() ? 0 : found->second);
    }
    const Bytes difference = bytes - LowerMedian(others);
    if (difference > most.bytes) {
      most = {fmt::format("{} ({})", line.first, CategoryName(line.second)), difference};
    }
  }
  return most;
}

/// The step from which on a rank is larger than the median rank; 0 where it always is.
std::optional<std::size_t> FirstOddStep(const std::vector<const RankReport*>& ranks,
                                        const RankReport& odd) {
  for (std::size_t s = 0; s < odd.step_table.size(); ++s) {
    std::vector<Bytes> others;
    for (const RankReport* r : ranks) {
      if (s < r->step_table.size()) others.push_back(r->step_table[s].peak_allocated);
    }
    const Bytes median = LowerMedian(others);
    const double difference = double(odd.step_table[s].peak_allocated - median);
    if (difference > kLeastDifference * double(median)) return s + 1;
  }
  return std::nullopt;
}

std::string NameOf(const RankReport& r) {
  if (r.rank) return fmt::format("rank {}", *r.rank);
  return fmt::format("device {}", r.device.value_or(0));
}

Finding Describe(const std::vector<const RankReport*>& ranks, const RankReport& odd, Bytes median) {
  const Bytes more = *odd.peak_allocated - median;
  const bool larger = more > 0;
  Finding finding;
  finding.id = odd.rank ? FindingId::kRankImbalance : FindingId::kDeviceImbalance;
  finding.explains = std::max<Bytes>(0, more);
  const double share = double(more) / double(std::max<Bytes>(1, *odd.peak_allocated));
  finding.severity = LeastLow(SeverityOfShare(share));
  finding.rank = odd.rank;
  finding.title = fmt::format("{} needs {} {} than the others: {} against {} at the median",
                              NameOf(odd), FormatBytes(std::abs(more)), larger ? "more" : "less",
                              FormatBytes(*odd.peak_allocated), FormatBytes(median));
  const Deviation category = ByCategory(ranks, odd);
  if (category.bytes != 0) {
    finding.evidence.push_back(fmt::format("it differs most in {}: {}{} at their peak",
                                           category.what, category.bytes > 0 ? "+" : "",
                                           FormatBytes(category.bytes)));
  }
  if (!larger) return finding;
  if (const Deviation holder = ByHolder(ranks, odd); holder.bytes > 0) {
    finding.evidence.push_back(
        fmt::format("the line that holds more: {}, +{}", holder.what, FormatBytes(holder.bytes)));
  }
  if (const auto step = FirstOddStep(ranks, odd)) {
    finding.evidence.push_back(fmt::format("from step {} on", *step));
  }
  if (odd.data_parallel) {
    finding.evidence.push_back(
        "nn.DataParallel gathers the outputs of all devices on one, sums the gradients there and "
        "keeps the optimizer's state there");
    finding.remedies.push_back(
        {.change =
             "DistributedDataParallel: one process for each device, each with its own outputs",
         .saves = more,
         .costs = "a launcher (torchrun) and a DistributedSampler",
         .basis = Basis::kRecorded,
         .lever = Lever::kSharding,
         .code =
             {"model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])",
              "torchrun --nproc-per-node=4 train.py"},
         .at_most = true});
  } else if (category.what == CategoryName(Category::kActivations)) {
    finding.remedies.push_back({.change =
                                    "give every rank batches of the same size (pad, bucket or "
                                    "balance by tokens or pixels)",
                                .saves = more,
                                .costs = "",
                                .basis = Basis::kRecorded});
  }
  return finding;
}

}  // namespace

std::optional<int> RankFromName(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::size_t at = name.rfind("rank");
  if (at == std::string::npos) return std::nullopt;
  std::size_t digits = at + 4;
  while (digits < name.size() && (name[digits] == '_' || name[digits] == '-' ||
                                  name[digits] == '.' || name[digits] == '=')) {
    ++digits;
  }
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), rank);
  if (error != std::errc() || rank < 0) return std::nullopt;
  return rank;
}

std::vector<Finding> CompareRanks(const std::vector<RankReport>& all, std::string& even) {
  std::vector<const RankReport*> ranks;
  std::vector<Bytes> peaks;
  for (const RankReport& r : all) {
    if (!r.peaks || !r.peak_allocated) continue;
    ranks.push_back(&r);
    peaks.push_back(*r.peak_allocated);
  }
  std::vector<Finding> findings;
  if (ranks.size() < 2) return findings;
  const Bytes median = LowerMedian(peaks);
  // The spread of the ranks that are not odd themselves: half of all lie this close to the median.
  std::vector<Bytes> distances;
  for (Bytes peak : peaks) distances.push_back(std::abs(peak - median));
  const double spread = double(LowerMedian(distances));
  const double threshold = std::max(kLeastDifference * double(median), kTimesSpread * spread);
  for (const RankReport* r : ranks) {
    if (double(std::abs(*r->peak_allocated - median)) > threshold) {
      findings.push_back(Describe(ranks, *r, median));
    }
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  const auto [low, high] = std::minmax_element(peaks.begin(), peaks.end());
  const std::string them = ranks.front()->rank ? "ranks" : "devices";
  if (double(*high - *low) <= kLeastDifference * double(median)) {
    even = fmt::format(
        "The {} {} are even: their peaks lie within {:.2f} % of each other ({}).", ranks.size(),
        them, 100.0 * double(*high - *low) / double(std::max<Bytes>(*low, 1)), FormatBytes(*high));
  } else {
    even = fmt::format("None of the {} {} is odd by itself: their peaks range from {} to {}.",
                       ranks.size(), them, FormatBytes(*low), FormatBytes(*high));
  }
  return findings;
}

}  // namespace plimsoll
