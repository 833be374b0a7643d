// The memory pool of CUDA graphs, beside the one of all else: what is asked for there, and what
// PyTorch does around a region that runs as one (torch/_inductor/cudagraph_trees.py).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "job/calls/emitter.h"
#include "job/lowering/graph_runs.h"
#include "job/lowering/request_writer.h"
#include "job/lowering/storage_blocks.h"

namespace plimsoll {

class GraphPool {
 public:
  GraphPool(const Job& job, const Variant& variant, Lowered& into, RequestWriter& requests);

  /// Before these events run, from `begin` to `end`.
  void Expect(const std::vector<JobEvent>& events, std::size_t begin, std::size_t end);
  /// At this event. Workspaces of products are given back before and after a region, and the cache
  /// is emptied when the pool is made and before each recording. For that, inputs are copied.
  void Begin(const GraphRegion& region, const StorageBlocks& blocks, std::size_t event);
  void End();
  /// Copies that no region uses after this event go.
  void Ran(std::size_t event);

  /// Taken once for each thread and pool, and kept.
  void Keep(std::string_view name, int thread, Bytes bytes);

 private:
  struct Kept {
    std::string name;
    int thread = 0;
    std::uint8_t pool = 0;

    auto operator<=>(const Kept&) const = default;
  };
  struct InputCopy {
    std::uint32_t block = 0;
    std::size_t last_use = 0;
  };

  void CopyInputs(const GraphRegion& region, const StorageBlocks& blocks, std::size_t event);
  void GiveWorkspacesOfProducts(std::uint8_t pool);

  const Job& job_;
  const Variant& variant_;
  Lowered& into_;
  RequestWriter& requests_;
  const bool used_;
  GraphRuns runs_;
  std::map<Kept, std::uint32_t> kept_;
  std::vector<InputCopy> copies_;
  /// By storage, in the events that run.
  std::unordered_map<Storage, std::size_t> last_uses_;
};

}  // namespace plimsoll
