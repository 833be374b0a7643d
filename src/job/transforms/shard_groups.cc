#include "job/transforms/shard_groups.h"

#include <algorithm>

#include "base/text.h"
#include "job/transforms/job_editor.h"

namespace plimsoll {
namespace {

/// A list counts if it holds a quarter of what the largest one does: an encoder beside its decoder
/// does, a stem of convolutions or a head of two layers does not.
constexpr Bytes kLeastShare = 4;

std::string_view ListOf(std::string_view block) {
  const std::size_t dot = block.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : block.substr(0, dot);
}

/// The block that holds a parameter. A list of parameters has numbers too, but no modules.
std::string_view BlockOfParameter(std::string_view name) {
  const std::string_view block = BlockOf(name);
  return block.size() < name.size() ? block : std::string_view();
}

/// A tied one once.
std::vector<std::uint32_t> ParametersOf(const Variant& variant) {
  std::vector<std::uint32_t> parameters;
  std::set<Storage> seen;
  for (std::uint32_t i = 0; i < variant.model_tensors.size(); ++i) {
    const ModelTensor& tensor = variant.model_tensors[i];
    if (!tensor.buffer && seen.insert(tensor.storage).second) parameters.push_back(i);
  }
  return parameters;
}

}  // namespace

std::string_view BlockOf(std::string_view path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    if (IsNumber(path.substr(begin, end - begin))) return path.substr(0, end);
    begin = end + 1;
  }
  return {};
}

ShardGroups::ShardGroups(const Job& job, const Variant& variant) {
  std::map<std::string_view, Bytes> held;
  for (const ModelTensor& tensor : variant.model_tensors) {
    const std::string_view block = BlockOfParameter(job.strings[tensor.name]);
    if (!tensor.buffer && !block.empty()) held[ListOf(block)] += BytesOf(job, tensor);
  }
  Bytes most = 0;
  for (const auto& [list, bytes] : held) most = std::max(most, bytes);
  std::erase_if(held, [&](const auto& list) { return list.second < most / kLeastShare; });
  for (const auto& [list, bytes] : held) lists_.emplace_back(list);

  for (const std::uint32_t parameter : ParametersOf(variant)) {
    const ModelTensor& tensor = variant.model_tensors[parameter];
    const std::string_view block = BlockOfParameter(job.strings[tensor.name]);
    const bool counts = !block.empty() && held.contains(ListOf(block));
    AddToGroup(counts ? block : std::string_view(), parameter);
  }
}

ShardGroups ShardGroups::AsSharded(const Job& job, const Variant& variant) {
  if (job.sharded.empty()) return {job, variant};
  // One number a call, before it is known which of them have parameters.
  ShardGroups calls;
  for (const std::vector<std::string>& modules : job.sharded) {
    const bool whole = std::ranges::find(modules, "") != modules.end();
    if (whole || modules.empty()) continue;
    for (const std::string& module : modules) calls.of_block_[module] = calls.groups_.size();
    calls.groups_.push_back({.module = modules.front(), .parameters = {}});
  }
  for (const std::uint32_t parameter : ParametersOf(variant)) {
    const std::string_view name = job.strings[variant.model_tensors[parameter].name];
    calls.groups_[calls.Of(name)].parameters.push_back(parameter);
  }
  return calls.WithoutEmpty();
}

ShardGroups ShardGroups::WithoutEmpty() const {
  ShardGroups rest;
  rest.groups_[kRoot] = groups_[kRoot];
  std::vector<std::size_t> becomes(groups_.size(), kRoot);
  for (std::size_t g = 1; g < groups_.size(); ++g) {
    if (groups_[g].parameters.empty()) continue;
    becomes[g] = rest.groups_.size();
    rest.groups_.push_back(groups_[g]);
  }
  for (const auto& [module, group] : of_block_) {
    if (becomes[group] != kRoot) rest.of_block_[module] = becomes[group];
  }
  return rest;
}

ShardGroups ShardGroups::Without(const Variant& variant,
                                 const std::set<Storage>& parameters) const {
  ShardGroups rest = *this;
  for (ShardGroup& group : rest.groups_) {
    std::erase_if(group.parameters, [&](std::uint32_t parameter) {
      return parameters.contains(variant.model_tensors[parameter].storage);
    });
  }
  return rest;
}

void ShardGroups::AddToGroup(std::string_view block, std::uint32_t parameter) {
  std::size_t group = kRoot;
  if (!block.empty()) {
    const auto [found, added] = of_block_.emplace(block, groups_.size());
    if (added) groups_.push_back({.module = std::string(block), .parameters = {}});
    group = found->second;
  }
  groups_[group].parameters.push_back(parameter);
}

std::size_t ShardGroups::Of(std::string_view module) const {
  while (!module.empty()) {
    const auto found = of_block_.find(module);
    if (found != of_block_.end()) return found->second;
    const std::size_t dot = module.rfind('.');
    module = module.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return kRoot;
}

}  // namespace plimsoll
