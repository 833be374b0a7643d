#include "answer/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace plimsoll {
namespace {

void GravestFirst(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
}

/// Of the findings in their order, the first one keeps a remedy.
void TellRemediesOnce(std::vector<Finding>& findings) {
  std::set<std::pair<Lever, std::string>> told;
  for (Finding& finding : findings) {
    std::erase_if(finding.remedies, [&](const Remedy& remedy) {
      // Two sentences about the same lever are one remedy, but for settings and what has no name.
      const bool own = remedy.lever == Lever::kOther || remedy.lever == Lever::kAllocatorSetting;
      return !told.insert({remedy.lever, own ? remedy.change : std::string()}).second;
    });
  }
}

/// Those that tell one rank from the others are never told of all.
bool ComparesRanks(FindingId id) {
  return id == FindingId::kRankImbalance || id == FindingId::kDeviceImbalance;
}

/// "ranks 1, 2 and 5"
std::string NamesOf(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

/// Each names a rank of its own: of many, the first few.
std::vector<Finding> FirstFew(std::vector<Finding> odd) {
  constexpr std::size_t kMostOdd = 4;
  if (odd.size() <= kMostOdd) return odd;
  const std::size_t left_out = odd.size() - kMostOdd;
  odd.resize(kMostOdd);
  odd.back().evidence.push_back(fmt::format("and {} more ranks are odd", left_out));
  return odd;
}

/// Findings of one kind and gravity: the first of each rank becomes one.
std::vector<Finding> MergeKind(std::vector<Finding> same, std::size_t ranks) {
  if (ComparesRanks(same.front().id)) return FirstFew(std::move(same));
  std::vector<Finding> told;
  std::set<int> seen;
  std::vector<int> others;
  for (Finding& f : same) {
    // Devices of one process have no rank, and may have other causes.
    const bool fresh = f.rank && seen.insert(*f.rank).second;
    if (fresh && seen.size() > 1) {
      others.push_back(*f.rank);
    } else {
      told.push_back(std::move(f));
    }
  }
  if (others.empty()) return told;
  const auto first =
      std::find_if(told.begin(), told.end(), [](const Finding& f) { return f.rank.has_value(); });
  if (seen.size() == ranks) {
    first->evidence.push_back(fmt::format("on {} ranks; the figures are those of rank {}",
                                          ranks == 2 ? "both" : fmt::format("all {}", ranks),
                                          *first->rank));
    first->rank = std::nullopt;
  } else {
    std::sort(others.begin(), others.end());
    first->evidence.push_back("the same on " + NamesOf(others));
  }
  return told;
}

}  // namespace

bool SavesUnknown(const Remedy& remedy) {
  if (remedy.saves || remedy.avoid) return false;
  switch (remedy.lever) {
    case Lever::kAllocatorSetting:
    case Lever::kMemoryLimit:
    case Lever::kOtherProcesses:
    case Lever::kHostLimit:
    case Lever::kLoaderWorkers:
    case Lever::kSharedMemory:
    case Lever::kCheckSize:
      return false;
    default:
      return true;
  }
}

std::vector<Finding> InOrder(std::vector<Finding> findings) {
  GravestFirst(findings);
  TellRemediesOnce(findings);
  return findings;
}

std::vector<Finding> MergeFindings(std::vector<Finding> all, std::size_t ranks) {
  std::vector<std::vector<Finding>> kinds;
  std::map<std::pair<FindingId, Severity>, std::size_t> index;
  for (Finding& f : all) {
    const auto [at, fresh] = index.emplace(std::pair(f.id, f.severity), kinds.size());
    if (fresh) kinds.emplace_back();
    kinds[at->second].push_back(std::move(f));
  }
  std::vector<Finding> merged;
  for (std::vector<Finding>& same : kinds) {
    std::vector<Finding> told = MergeKind(std::move(same), ranks);
    std::move(told.begin(), told.end(), std::back_inserter(merged));
  }
  return InOrder(std::move(merged));
}

}  // namespace plimsoll
