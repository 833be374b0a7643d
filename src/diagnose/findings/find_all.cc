#include <algorithm>

#include "diagnose/findings/findings.h"

namespace plimsoll {

std::vector<Finding> FindAll(const Evidence& e) {
  std::vector<Finding> all;
  // Of equal gravity, the one that explains most comes first: why memory grew before that it ended.
  for (auto find : {FindLeak, FindEvalSpike, FindLongestBatch, FindOutOfMemory, FindFragmentation,
                    FindRounding, FindPrivatePools, FindCache, FindWarmUp, FindSavings}) {
    std::vector<Finding> found = find(e);
    // A leak makes later steps larger; that is no long batch.
    const bool leak = std::any_of(all.begin(), all.end(),
                                  [](const Finding& f) { return f.id == FindingId::kLeak; });
    for (Finding& finding : found) {
      if (leak && finding.id == FindingId::kLongestBatch) continue;
      all.push_back(std::move(finding));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  TellRemediesOnce(all);
  return all;
}

}  // namespace plimsoll
