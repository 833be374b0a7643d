#include "train/parallel/sharded/sharded_blocks.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <set>

#include "train/light/lora.h"
#include "train/parallel/ranks/broadcast_model.h"

namespace plimsoll::train {
namespace {

/// The modules of its blocks: a list that has as many.
std::vector<std::shared_ptr<torch::nn::Module>> BlocksOf(const torch::nn::Module& module,
                                                         const Checkpointable& checkpointable) {
  for (const auto& child : module.children()) {
    const auto* list = child->as<torch::nn::ModuleListImpl>();
    const bool blocks =
        list != nullptr && static_cast<int>(list->size()) == checkpointable.checkpoint_blocks();
    if (blocks) return {list->begin(), list->end()};
  }
  return {};
}

/// A module's block and those of its parameters that are of no block before it.
struct BlockParameters {
  const Checkpointable* module = nullptr;
  int number = 0;
  std::vector<at::Tensor> parameters;
};

/// First what is in no block.
std::vector<BlockParameters> ParametersByBlock(const torch::nn::Module& model) {
  std::set<const void*> in_block;
  std::vector<BlockParameters> blocks(1);
  // The model itself need not be in a shared_ptr.
  std::vector<const torch::nn::Module*> modules{&model};
  for (const auto& module : model.modules(/*include_self=*/false)) modules.push_back(module.get());
  for (const torch::nn::Module* module : modules) {
    const auto* checkpointable = dynamic_cast<const Checkpointable*>(module);
    if (checkpointable == nullptr) continue;
    int number = 0;
    for (const auto& block : BlocksOf(*module, *checkpointable)) {
      auto& own = blocks.emplace_back(BlockParameters{checkpointable, number++, {}}).parameters;
      for (const at::Tensor& parameter : TrainedParameters(*block)) {
        // A block within a block, or one that shares its parameters: the first has them.
        if (in_block.insert(parameter.unsafeGetTensorImpl()).second) own.push_back(parameter);
      }
    }
  }
  for (const at::Tensor& parameter : TrainedParameters(model)) {
    if (in_block.contains(parameter.unsafeGetTensorImpl())) continue;
    blocks[0].parameters.push_back(parameter);
  }
  return blocks;
}

}  // namespace

ShardedBlocks::ShardedBlocks(torch::nn::Module& model, Ranks& ranks, const ShardedOptions& options)
    : ahead_(options.ahead) {
  TORCH_CHECK(options.group >= 1, "a group of ", options.group, " bytes can hold no parameter.");
  BroadcastModel(model, ranks);
  for (const auto& [module, number, parameters] : ParametersByBlock(model)) {
    AddGroups({module, number}, parameters, ranks, options);
  }
  TORCH_CHECK(!groups_.empty(), "the model has no parameter that is trained.");
}

void ShardedBlocks::AddGroups(const BlockKey& block, std::vector<at::Tensor> parameters,
                              Ranks& ranks, const ShardedOptions& options) {
  const auto kind = [&](const at::Tensor& one) { return options.kind ? options.kind(one) : 0; };
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](const auto& a, const auto& b) { return kind(a) < kind(b); });
  const GroupForm form{.shard = options.shard,
                       .compute_dtype = options.compute_dtype,
                       .send_bf16 = options.send_bf16,
                       .offload = options.offload};
  std::vector<at::Tensor> group;
  Bytes bytes = 0;
  const auto close = [&] {
    if (group.empty()) return;
    groups_of_[block].push_back(groups_.size());
    kinds_.push_back(kind(group[0]));
    groups_.push_back(std::make_unique<FlatGroup>(std::move(group), ranks, form));
    group.clear();
    bytes = 0;
  };
  for (const at::Tensor& parameter : parameters) {
    const bool other = !group.empty() && (group[0].dtype() != parameter.dtype() ||
                                          group[0].device() != parameter.device() ||
                                          kind(group[0]) != kind(parameter));
    if (other || bytes >= options.group) close();
    group.push_back(parameter);
    bytes += static_cast<Bytes>(parameter.nbytes());
  }
  close();
}

const std::vector<std::size_t>& ShardedBlocks::GroupsOf(const BlockKey& block) const {
  static const std::vector<std::size_t> none;
  const auto found = groups_of_.find(block);
  return found == groups_of_.end() ? none : found->second;
}

void ShardedBlocks::Gather(const BlockKey& block) {
  for (const std::size_t group : GroupsOf(block)) groups_[group]->Gather();
}

void ShardedBlocks::BeginGather(const BlockKey& block) {
  if (!ahead_) return;
  for (const std::size_t group : GroupsOf(block)) groups_[group]->BeginGather();
}

void ShardedBlocks::Release(const BlockKey& block) {
  for (const std::size_t group : GroupsOf(block)) groups_[group]->Release();
}

void ShardedBlocks::GatherAll() {
  for (const auto& group : groups_) group->BeginGather();
  for (const auto& group : groups_) group->Gather();
}

void ShardedBlocks::ReleaseAll() {
  for (const auto& group : groups_) group->Release();
}

void ShardedBlocks::Enter(const Checkpointable& module, CheckpointPolicy::Range blocks,
                          bool /*in_chain*/) {
  for (int i = blocks.begin; i < blocks.end; ++i) Gather({&module, i});
  BeginGather({&module, blocks.end});
}

void ShardedBlocks::Leave(const Checkpointable& module, CheckpointPolicy::Range blocks,
                          const at::Tensor& result) {
  for (int i = blocks.begin; i < blocks.end; ++i) Release({&module, i});
  if (!result.requires_grad()) return;
  result.register_hook([this, &module, blocks](const at::Tensor& gradient) {
    for (int i = blocks.begin; i < blocks.end; ++i) Gather({&module, i});
    BeginGather({&module, blocks.begin - 1});
    return gradient;
  });
}

}  // namespace plimsoll::train
