// Pools of CUDA graphs and of torch.cuda.MemPool.
#include <fmt/format.h>

#include "answer/severity.h"
#include "diagnose/attribution/pool_table.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// Several graphs that run one after the other can work in one pool: what each needs only while it
/// runs is then there once.
void AddSharing(const Evidence& e, Finding& finding) {
  const PoolsReport report = PoolTable(e.trace.phases);
  if (report.pools.size() < 2) return;
  const Bytes saved = report.SavedByOne();
  finding.evidence.push_back(fmt::format(
      "they are {} pools, which held {} at most together; what each had in use at its highest adds "
      "up to {}, and at no time were more than {} in use at once",
      report.pools.size(), FormatBytes(report.peak_reserved), FormatBytes(report.sum_of_peaks),
      FormatBytes(report.peak_of_sum)));
  if (!Notable(saved, e.trace.ledger.peak_reserved)) return;
  finding.severity = LeastLow(SeverityOfShare(e.ShareOf(saved)));
  finding.remedies.push_back(
      {.change = "one pool for all graphs that never run at the same time",
       .saves = saved,
       .remark = "computed from what was in use while they were captured; graphs of one pool must "
                 "be replayed in the order in which they were captured",
       .basis = Basis::kEstimated,
       .code = {"pool = torch.cuda.graph_pool_handle()   # once",
                "with torch.cuda.graph(graph, pool=pool):   # for each graph"},
       .at_most = true});
}

}  // namespace

std::vector<Finding> FindPrivatePools(const Evidence& e) {
  const Timeline& t = e.trace.timeline;
  Bytes held = 0;
  Bytes used = 0;
  for (const Segment& s : t.segments) {
    if (t.pools[s.pool] == PoolId{}) continue;
    held += s.size;
    for (std::size_t b = s.first_block; b < s.first_block + s.block_count; ++b) {
      used += t.blocks[b].state == BlockState::kActive ? t.blocks[b].size : 0;
    }
  }
  if (!Notable(held, e.trace.ledger.peak_reserved)) return {};
  Finding finding{.id = FindingId::kPrivatePools, .severity = Severity::kInfo};
  finding.title = fmt::format(
      "{} lie in memory pools of their own (CUDA graphs, torch.cuda.MemPool), which nothing else "
      "can use",
      FormatBytes(held));
  finding.evidence.push_back(
      fmt::format("when the record was made, {} of them were in use; a pool keeps the rest, as a "
                  "graph needs it for its replays",
                  FormatBytes(used)));
  AddSharing(e, finding);
  return {finding};
}

}  // namespace plimsoll
