#include "train/planning/step_record.h"

#include <algorithm>
#include <set>
#include <utility>

namespace plimsoll::train {

ModelBlocks::ModelBlocks(torch::nn::Module& model) {
  for (const auto& module : model.modules()) {
    auto* const part = dynamic_cast<Checkpointable*>(module.get());
    // A module that is registered twice is one.
    if (part == nullptr || !first_.emplace(part, size_).second) continue;
    const int blocks = part->checkpoint_blocks();
    TORCH_CHECK(blocks >= 0, "a module says that it has ", blocks, " blocks to checkpoint");
    modules_.emplace_back(part, blocks);
    size_ += blocks;
  }
}

int ModelBlocks::NumberOf(const Checkpointable& module, int block) const {
  const auto found = first_.find(&module);
  TORCH_CHECK(found != first_.end(), "a checkpointable module ran that is no part of the model");
  return found->second + block;
}

void ModelBlocks::Use(const CheckpointPolicy& policy) const {
  int begin = 0;
  for (const auto& [module, blocks] : modules_) {
    module->set_checkpoint_policy(policy.Part(begin, blocks));
    begin += blocks;
  }
}

bool StepRecord::Follows(const StepRecord& other) const {
  const auto same = [](const BlockRun& a, const BlockRun& b) {
    return a.block == b.block && a.enter == b.enter && a.leave == b.leave &&
           a.backward == b.backward;
  };
  return marks.size() == other.marks.size() && std::ranges::equal(runs, other.runs, same);
}

bool StepRecord::HasBlocksWithinBlocks() const {
  return std::ranges::any_of(runs, [](const BlockRun& run) { return run.depth > 0; });
}

CheckpointPolicy StepRecord::OutermostAlone() const {
  std::set<int> blocks;
  for (const BlockRun& run : runs) {
    if (run.depth == 0) blocks.insert(run.block);
  }
  std::vector<CheckpointPolicy::Range> ranges;
  for (const int block : blocks) ranges.push_back({block, block + 1});
  return CheckpointPolicy::Plan(std::move(ranges));
}

StepRecorder::StepRecorder(Budget& budget, const ModelBlocks& blocks)
    : budget_(budget), blocks_(blocks), first_(budget.traffic()), watch_(*this) {
  Mark();
}

std::size_t StepRecorder::Mark() {
  const std::lock_guard lock(mutex_);
  const MemoryFigures now = budget_.Sample();
  if (!record_.marks.empty()) record_.marks.back().peak = now.peak_allocated;
  const MemoryTraffic traffic = budget_.traffic();
  record_.marks.push_back({.alive = now.allocated,
                           .peak = now.allocated,
                           .work = {.flops = flops_.flops(),
                                    .half_flops = flops_.half_flops(),
                                    .made = traffic.bytes - first_.bytes,
                                    .requests = traffic.requests - first_.requests}});
  return record_.marks.size() - 1;
}

void StepRecorder::Enter(const Checkpointable& module, CheckpointPolicy::Range blocks,
                         bool in_chain) {
  const int depth = static_cast<int>(open_.size());
  open_.push_back(record_.runs.size());
  record_.runs.push_back({.block = blocks_.NumberOf(module, blocks.begin),
                          .depth = depth,
                          .in_chain = in_chain,
                          .enter = Mark()});
}

void StepRecorder::Leave(const Checkpointable&, CheckpointPolicy::Range, const at::Tensor& result) {
  const std::size_t run = open_.back();
  open_.pop_back();
  record_.runs[run].leave = Mark();
  if (!result.requires_grad()) return;
  // When its gradient is there, backward has come to the block.
  result.register_hook([this, run](const at::Tensor&) {
    const std::size_t mark = Mark();
    auto& backward = record_.runs[run].backward;
    if (!backward) backward = mark;
  });
}

StepRecord StepRecorder::Finish() {
  Mark();
  return std::move(record_);
}

}  // namespace plimsoll::train
