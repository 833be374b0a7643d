// Causes. One function a cause (find_*.cc): from what is known of a
// trace to findings that carry their evidence.
#pragma once

#include <algorithm>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/attribution/account.h"
#include "diagnose/attribution/analysed_trace.h"

namespace plimsoll {

/// Everything that is known of one trace when causes are looked for.
struct Evidence {
  const AnalysedTrace& trace;
  const Account& account;  // at the instant
  Position instant;

  /// The memory at hand, which shares are of: the budget, else what PyTorch held at most.
  Bytes Whole() const {
    const Bytes held = std::max({trace.ledger.peak_reserved, account.reserved, Bytes{1}});
    return trace.timeline.settings.budget.value_or(held);
  }
  double ShareOf(Bytes bytes) const { return double(bytes) / double(Whole()); }
};

/// Why the fatal request failed: capacity, limit or fragmentation; and requests that failed but
/// were survived (workspace_refused, or errors that the program caught).
std::vector<Finding> FindOutOfMemory(const Evidence& evidence);
/// Much more held than used, and settings that would hold less.
std::vector<Finding> FindFragmentation(const Evidence& evidence);
/// Memory that grows with the steps: leak, or crumbs where it is too little to matter.
std::vector<Finding> FindLeak(const Evidence& evidence);
/// The optimizer's state, made in the first step: growth that looks like a leak and is none.
std::vector<Finding> FindWarmUp(const Evidence& evidence);
/// One step with far more activations than the others.
std::vector<Finding> FindLongestBatch(const Evidence& evidence);
/// Work between the steps that needs more than training does.
std::vector<Finding> FindEvalSpike(const Evidence& evidence);
/// A forward whose graph is held although no backward ever goes through it.
std::vector<Finding> FindUnusedGraph(const Evidence& evidence);

/// Memory in pools of CUDA graphs; rounding that a setting asks for; the cache of generation.
std::vector<Finding> FindPrivatePools(const Evidence& evidence);
std::vector<Finding> FindRounding(const Evidence& evidence);
/// A region that torch.compile compiled again.
std::vector<Finding> FindRecompiles(const Evidence& evidence);
/// Pinned memory of the host that is far more than was asked for.
std::vector<Finding> FindPinnedRounding(const Evidence& evidence);
/// A request that failed beside a block that another stream had just let go of.
std::vector<Finding> FindPendingFree(const Evidence& evidence);
std::vector<Finding> FindCache(const Evidence& evidence);
/// Of a job that is well: what would lower its peak, and by how much.
std::vector<Finding> FindSavings(const Evidence& evidence);

/// Whether so much, of a whole, is worth a finding of its own.
inline bool Notable(Bytes bytes, Bytes of) {
  constexpr Bytes kWorthNaming = 64 * kMiB;
  constexpr double kNotableShare = 0.1;
  return bytes >= kWorthNaming && double(bytes) >= kNotableShare * double(of);
}

/// The row of an out-of-memory event: its cause in one word, and what was refused where.
std::vector<OomReport> OomRows(const Evidence& evidence);

/// All of them, the gravest first.
std::vector<Finding> FindAll(const Evidence& evidence);

}  // namespace plimsoll
