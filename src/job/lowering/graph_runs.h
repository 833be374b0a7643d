// Compiled regions that run as CUDA graphs (torch.compile with mode="reduce-overhead"): what
// PyTorch does at which run of them, as torch/_inductor/cudagraph_trees.py has it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "job/calls/emitter.h"
#include "job/file/job.h"

namespace plimsoll {

/// What a run of a region is. A replay asks the allocator for nothing: it uses again what its
/// recording was given.
enum class GraphRun : std::uint8_t { kWarmUp, kRecording, kReplay };

/// Forwards and the backwards that follow them are a generation, and so is each run of a region
/// that has no backward. A region that is new warms up, and so does all that follows it in the
/// generation; in a later one it is recorded.
class GraphRuns {
 public:
  /// Whether such a run is the first of a generation: what the last one made may be overwritten.
  bool BeginsGeneration(GraphRegion::Kind kind) const;
  GraphRun Begin(const GraphRegion& region);
  /// Whether none has run.
  bool empty() const { return generation_ == 0; }

 private:
  /// By region: the generation in which it was recorded; 0 before that.
  std::unordered_map<std::int64_t, std::int64_t> recorded_;
  /// From 1.
  std::int64_t generation_ = 0;
  GraphRegion::Kind last_ = GraphRegion::Kind::kForward;
  bool warms_up_ = false;
};

bool HasGraphs(const Job& job, const Variant& variant);
/// By storage: the last of the events from `begin` to `end` at which a region uses it.
std::unordered_map<Storage, std::size_t> LastUsesInGraphs(const Job& job, const Variant& variant,
                                                          const std::vector<JobEvent>& events,
                                                          std::size_t begin, std::size_t end);

}  // namespace plimsoll
