#include "job/parallel/shard_layouts.h"

#include <algorithm>
#include <utility>

#include "job/transforms/job_editor.h"

namespace plimsoll {
namespace {

std::int64_t RoundedUp(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

bool SameSizes(const LayoutRecord& a, const LayoutRecord& b) { return a.sizes == b.sizes; }

}  // namespace

std::uint32_t ShardLayouts::ShardOf(std::uint32_t layout) {
  const auto known = shard_of_.find(layout);
  if (known != shard_of_.end()) return known->second;
  LayoutRecord shard = job_.layouts[layout];
  if (shard.dtype == computed_in_) shard.dtype = DType::kFloat32;
  if (!shard.sizes.empty()) {
    Number& rows = shard.sizes.front();
    rows = Number::Each([&](std::int64_t n) { return RoundedUp(n, ranks_) / ranks_; }, rows);
  }
  job_.layouts.push_back(std::move(shard));
  return shard_of_[layout] = static_cast<std::uint32_t>(job_.layouts.size() - 1);
}

Bytes ShardLayouts::PaddedBytes(const ModelTensor& tensor) const {
  const LayoutRecord& layout = job_.layouts[tensor.layout];
  const Bytes bytes = BytesOf(layout);
  if (bytes <= 0 || layout.sizes.empty()) return bytes;
  const std::int64_t rows = layout.sizes.front().least();
  const std::int64_t padded = RoundedUp(rows, ranks_);
  return bytes / rows > kLargestTensor / padded ? kLargestTensor : bytes / rows * padded;
}

void ShardLayouts::ShardCall(CallRecord& call) {
  for (NewStorage& fresh : call.fresh) {
    if (fresh.result >= call.results.size() || left_out_.contains(fresh.storage)) continue;
    const std::uint32_t whole = call.results[fresh.result].layout;
    if (!LikeParameter(whole) || fresh.bytes.least() != BytesOf(job_.layouts[whole])) continue;
    const Bytes bytes = BytesOf(job_.layouts[ShardOf(whole)]);
    fresh.bytes = {bytes, bytes};
  }
  for (TensorUse& use : call.results) ShardUse(use);
  for (Argument& argument : call.args) ShardArgument(argument);
  for (auto& [name, argument] : call.kwargs) ShardArgument(argument);
}

void ShardLayouts::ShardArgument(Argument& argument) {
  if (auto* use = std::get_if<TensorUse>(&argument.is)) ShardUse(*use);
  if (auto* list = std::get_if<Argument::List>(&argument.is)) {
    for (Argument& member : *list) ShardArgument(member);
  }
}

void ShardLayouts::ShardUse(TensorUse& use) {
  if (!left_out_.contains(use.storage) && LikeParameter(use.layout))
    use.layout = ShardOf(use.layout);
}

bool ShardLayouts::LikeParameter(std::uint32_t layout) {
  const auto [known, added] = like_parameter_.emplace(layout, false);
  if (!added) return known->second;
  const LayoutRecord& looked_at = job_.layouts[layout];
  known->second = !looked_at.sizes.empty() &&
                  std::ranges::any_of(variant_.model_tensors, [&](const ModelTensor& tensor) {
                    return tensor.trainable && SameSizes(job_.layouts[tensor.layout], looked_at);
                  });
  return known->second;
}

}  // namespace plimsoll
