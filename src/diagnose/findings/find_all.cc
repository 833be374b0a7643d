#include <algorithm>

#include "diagnose/findings/findings.h"

namespace plimsoll {

namespace {

/// What a program of C++ cannot type is not told to it: lines of Python, and FSDP.
void FitToCpp(std::vector<Finding>& findings) {
  for (Finding& finding : findings) {
    std::erase_if(finding.remedies, [](const Remedy& r) { return r.lever == Lever::kSharding; });
    for (Remedy& remedy : finding.remedies) {
      if (remedy.lever != Lever::kAllocatorSetting) remedy.code.clear();
    }
  }
}

}  // namespace

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
  if (e.trace.stacks.IsCpp()) FitToCpp(all);
  return InOrder(std::move(all));
}

}  // namespace plimsoll
