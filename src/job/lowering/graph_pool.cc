#include "job/lowering/graph_pool.h"

#include <limits>

namespace plimsoll {
namespace {

/// The pool of all that is in no region, and the one that all graphs share.
constexpr std::uint8_t kCommonPool = 0;
constexpr std::uint8_t kGraphPool = 1;
/// Of cuBLAS and of cuBLASLt.
constexpr std::string_view kWorkspacesOfProducts = "cublas";

}  // namespace

GraphPool::GraphPool(const Job& job, const Variant& variant, Lowered& into, RequestWriter& requests)
    : job_(job),
      variant_(variant),
      into_(into),
      requests_(requests),
      used_(HasGraphs(job, variant)) {
  // In a recording nothing that is cached can go back to the driver.
  into_.workload.captures = {false};
  if (used_) into_.workload.captures.push_back(true);
}

void GraphPool::Expect(const std::vector<JobEvent>& events, std::size_t begin, std::size_t end) {
  if (used_) last_uses_ = LastUsesInGraphs(job_, variant_, events, begin, end);
}

void GraphPool::Begin(const GraphRegion& region, const StorageBlocks& blocks, std::size_t event) {
  if (!used_) return;
  if (runs_.BeginsGeneration(region.kind)) Ran(std::numeric_limits<std::size_t>::max());
  if (runs_.empty()) requests_.EmptyCache();
  const GraphRun run = runs_.Begin(region);
  requests_.UsePool(kGraphPool);
  // A replay asks for nothing; what it uses is where its recording had it.
  if (run != GraphRun::kWarmUp) CopyInputs(region, blocks, event);
  if (run != GraphRun::kReplay) GiveWorkspacesOfProducts(kCommonPool);
  if (run == GraphRun::kRecording) requests_.EmptyCache();
}

void GraphPool::End() {
  if (!used_) return;
  GiveWorkspacesOfProducts(kGraphPool);
  requests_.UsePool(kCommonPool);
}

void GraphPool::Ran(std::size_t event) {
  std::erase_if(copies_, [&](const InputCopy& copy) {
    if (copy.last_use > event) return false;
    requests_.Release(copy.block);
    return true;
  });
}

void GraphPool::Keep(std::string_view name, int thread, Bytes bytes) {
  const auto [kept, added] =
      kept_.try_emplace(Kept{std::string(name), thread, requests_.pool()}, 0);
  if (added) kept->second = requests_.AllocateBeside(bytes, Category::kWorkspaces);
}

/// Of what lies in the pool there is none: other graphs have made it there, at the same place.
void GraphPool::CopyInputs(const GraphRegion& region, const StorageBlocks& blocks,
                           std::size_t event) {
  for (const Tensor& input : region.moving) {
    const std::uint32_t block = blocks.Of(input.storage);
    const bool is_there = block != StorageBlocks::kNone && into_.blocks[block].pool == kGraphPool;
    if (is_there || input->bytes() <= 0) continue;
    const auto last = last_uses_.find(input.storage);
    copies_.push_back({.block = requests_.AllocateBeside(input->bytes(), Category::kInputs),
                       .last_use = last == last_uses_.end() ? event : last->second});
  }
}

void GraphPool::GiveWorkspacesOfProducts(std::uint8_t pool) {
  std::erase_if(kept_, [&](const auto& kept) {
    const auto& [key, block] = kept;
    if (key.pool != pool || !key.name.starts_with(kWorkspacesOfProducts)) return false;
    requests_.Release(block);
    return true;
  });
}

}  // namespace plimsoll
