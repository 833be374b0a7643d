// Pools of CUDA graphs and of torch.cuda.MemPool.
#include <fmt/format.h>

#include "diagnose/findings/findings.h"

namespace plimsoll {
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
  return {finding};
}

}  // namespace plimsoll
