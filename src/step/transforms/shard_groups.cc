#include "step/transforms/shard_groups.h"

#include <algorithm>
#include <set>

#include "step/transforms/step_editor.h"

namespace plimsoll {
namespace {

/// A list counts if it holds a quarter of what the largest one does: an encoder beside its decoder
/// does, a stem of convolutions or a head of two layers does not.
constexpr Bytes kLeastShare = 4;

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view ListOf(std::string_view block) {
  const std::size_t dot = block.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : block.substr(0, dot);
}

/// The block that holds a parameter. A list of parameters has numbers too, but no modules.
std::string_view BlockOfParameter(std::string_view name) {
  const std::string_view block = BlockOf(name);
  return block.size() < name.size() ? block : std::string_view();
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

ShardGroups::ShardGroups(const Step& step, const Variant& variant) {
  std::map<std::string_view, Bytes> held;
  for (const ModelTensor& tensor : variant.model_tensors) {
    const std::string_view block = BlockOfParameter(step.strings[tensor.name]);
    if (!tensor.buffer && !block.empty()) held[ListOf(block)] += BytesOf(step, tensor);
  }
  Bytes most = 0;
  for (const auto& [list, bytes] : held) most = std::max(most, bytes);
  std::erase_if(held, [&](const auto& list) { return list.second < most / kLeastShare; });
  for (const auto& [list, bytes] : held) lists_.emplace_back(list);

  groups_.emplace_back();
  std::set<Storage> seen;
  for (std::uint32_t i = 0; i < variant.model_tensors.size(); ++i) {
    const ModelTensor& tensor = variant.model_tensors[i];
    if (tensor.buffer || !seen.insert(tensor.storage).second) continue;
    const std::string_view block = BlockOfParameter(step.strings[tensor.name]);
    std::size_t group = kRoot;
    if (!block.empty() && held.contains(ListOf(block))) {
      const auto [found, added] = of_block_.emplace(block, groups_.size());
      if (added) groups_.push_back({.module = std::string(block), .parameters = {}});
      group = found->second;
    }
    groups_[group].parameters.push_back(i);
  }
}

std::size_t ShardGroups::Of(std::string_view module) const {
  const auto found = of_block_.find(BlockOf(module));
  return found == of_block_.end() ? kRoot : found->second;
}

}  // namespace plimsoll
