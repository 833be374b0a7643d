#include <algorithm>
#include <array>

#include "diagnose/findings/findings.h"

namespace plimsoll {

namespace {

/// Of equal gravity, the one that explains most comes first: why memory grew before that it ended.
constexpr auto kCauses =
    std::to_array({FindLeak, FindUnusedGraph, FindEvalSpike, FindLongestBatch, FindPendingFree,
                   FindOutOfMemory, FindFragmentation, FindRounding, FindPrivatePools,
                   FindPinnedRounding, FindRecompiles, FindCache, FindWarmUp, FindSavings});
/// What needs to know how long blocks lived: a record without frees, or without allocations, would
/// make each of them cry wolf.
constexpr auto kByLives = std::to_array({FindLeak, FindUnusedGraph, FindEvalSpike, FindLongestBatch,
                                         FindFragmentation, FindWarmUp, FindSavings});

/// What looks like a cause of its own and is the work of another: it is not told where that one is
/// found and explains as much.
struct Excludes {
  FindingId cause;
  FindingId looks_like;
};
constexpr auto kExcludes = std::to_array<Excludes>({
    // A leak makes later steps, and what comes after them, larger.
    {FindingId::kLeak, FindingId::kLongestBatch},
    {FindingId::kLeak, FindingId::kEvalSpike},
    // So does a graph that is held from one step into the next.
    {FindingId::kUnusedGraph, FindingId::kLongestBatch},
    // A block that had just become free is a free piece that did not help.
    {FindingId::kPendingFree, FindingId::kFragmentation},
});

void DropWhatOthersExplain(std::vector<Finding>& all) {
  for (const Excludes& rule : kExcludes) {
    Bytes explained = -1;
    for (const Finding& f : all) {
      if (f.id == rule.cause) explained = std::max(explained, f.explains);
    }
    std::erase_if(
        all, [&](const Finding& f) { return f.id == rule.looks_like && f.explains <= explained; });
  }
}

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
  const MissingKinds& missing = e.trace.ledger.missing;
  const bool no_lives = missing.frees() || missing.allocs;
  for (auto find : kCauses) {
    if (no_lives && std::ranges::find(kByLives, find) != kByLives.end()) continue;
    for (Finding& finding : find(e)) all.push_back(std::move(finding));
  }
  DropWhatOthersExplain(all);
  if (e.trace.stacks.IsCpp()) FitToCpp(all);
  return InOrder(std::move(all));
}

}  // namespace plimsoll
