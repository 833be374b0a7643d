#include "report/page_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "diagnose/diff.h"
#include "diagnose/explain.h"

namespace plimsoll {
namespace {

/// More than this makes a page slow to open; what goes beyond is left out, and the page says so.
constexpr std::size_t kMostHistoryBytes = 10'000'000;

/// Files of ranks that ran out, or that differ from the others.
std::set<std::string> Remarkable(const Explanation& explanation) {
  std::set<std::string> files;
  for (const RankReport& rank : explanation.ranks) {
    const auto& findings = explanation.findings;
    const bool died = std::any_of(rank.ooms.begin(), rank.ooms.end(),
                                  [](const OomReport& oom) { return oom.fatal; });
    const bool odd = std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
      return f.rank && f.rank == rank.rank && f.id == FindingId::kRankImbalance;
    });
    if (died || odd) files.insert(rank.file);
  }
  return files;
}

/// Where there is not room for all timelines, the remarkable ones stay.
void KeepWhatFits(const Explanation& explanation, std::vector<PageRun>& runs,
                  std::vector<std::string>& left_out) {
  const std::set<std::string> remarkable = Remarkable(explanation);
  std::size_t bytes = 0;
  std::size_t dropped = 0;
  for (const bool first : {true, false}) {
    for (PageRun& run : runs) {
      if (remarkable.contains(run.file) != first) continue;
      if (bytes > 0 && bytes + run.history.size() > kMostHistoryBytes) {
        run.history.clear();
        ++dropped;
      }
      bytes += run.history.size();
    }
  }
  if (dropped == 0) return;
  left_out.push_back(
      fmt::format("The timelines of {} of {} ranks were left out to keep the page small: report on "
                  "those ranks alone to see them.",
                  dropped, runs.size()));
}

/// "rank0.pickle and 3 more"; "engine and trainer on one card". An error text that completes a
/// snapshot is not counted.
std::string TitleOf(const Explanation& joined) {
  if (joined.cards.size() == 1) {
    std::vector<std::string> names;
    for (const CardProcess& process : joined.cards.front().processes) names.push_back(process.name);
    return Joined(names, " and ") + " on one card";
  }
  std::set<std::string> files;
  for (const RankReport& rank : joined.ranks) files.insert(rank.file);
  const std::string& first = joined.ranks.front().file;
  const std::string name = first.substr(first.find_last_of('/') + 1);
  return files.size() == 1 ? name : fmt::format("{} and {} more", name, files.size() - 1);
}

/// The same rank and device, else the same device, else the same place in the list, else the first.
std::size_t PartnerOf(const RankReport& rank, std::size_t index,
                      const std::vector<RankReport>& others) {
  const auto find = [&](auto same) {
    return static_cast<std::size_t>(std::find_if(others.begin(), others.end(), same) -
                                    others.begin());
  };
  const std::size_t same = find([&](const RankReport& r) {
    return r.rank && r.rank == rank.rank && r.device == rank.device;
  });
  if (same < others.size()) return same;
  if (index < others.size() && others[index].device == rank.device) return index;
  const std::size_t device = find([&](const RankReport& r) { return r.device == rank.device; });
  return device < others.size() ? device : 0;
}

Result<PageBaseline> CompareWith(PageParts parts, const Explanation& own) {
  PageBaseline baseline{.title = {}, .explanation = {}, .runs = std::move(parts.runs)};
  baseline.explanation = Join(std::move(parts.explanations));
  baseline.title = TitleOf(baseline.explanation);
  for (std::size_t i = 0; i < own.ranks.size(); ++i) {
    const std::size_t partner = PartnerOf(own.ranks[i], i, baseline.explanation.ranks);
    const Result<Difference> difference =
        Compare(baseline.explanation.ranks[partner], own.ranks[i]);
    if (!difference) return difference.error();
    baseline.pairs.push_back({.rank = partner, .verdict = difference->verdict});
  }
  return baseline;
}

/// Comparing needed every holder; the page's document has as many as `explain` tells.
void KeepLargestHolders(Explanation& explanation) {
  for (RankReport& rank : explanation.ranks) {
    KeepLargest(rank.holders, ExplainOptions{}.most_holders);
  }
}

}  // namespace

Result<PageContent> AssemblePage(PageParts parts, PageParts baseline) {
  PageContent page{
      .title = {},
      .explanation = Join(std::move(parts.explanations), std::move(parts.cards), parts.apart),
      .runs = std::move(parts.runs)};
  page.title = TitleOf(page.explanation);
  KeepWhatFits(page.explanation, page.runs, page.left_out);
  if (baseline.explanations.empty()) return page;
  Result<PageBaseline> compared = CompareWith(std::move(baseline), page.explanation);
  if (!compared) return compared.error();
  page.baseline = std::move(*compared);
  page.title += fmt::format(", compared with {}", page.baseline->title);
  KeepWhatFits(page.baseline->explanation, page.baseline->runs, page.left_out);
  KeepLargestHolders(page.explanation);
  KeepLargestHolders(page.baseline->explanation);
  return page;
}

}  // namespace plimsoll
