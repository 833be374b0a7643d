#include "train/parallel/ranks/begun_work.h"

#include <cstdint>
#include <vector>

namespace plimsoll::train {
namespace {

/// Named otherwise in newer releases.
template <class Group>
auto GatherOf(Group& group, at::Tensor& whole, at::Tensor& part) {
  if constexpr (requires { group.all_gather_single(whole, part); }) {
    return group.all_gather_single(whole, part);
  } else {
    return group._allgather_base(whole, part);
  }
}

template <class Group>
auto SumPartsOf(Group& group, at::Tensor& part, at::Tensor& whole) {
  if constexpr (requires { group.reduce_scatter_single(part, whole); }) {
    return group.reduce_scatter_single(part, whole);
  } else {
    return group._reduce_scatter_base(part, whole);
  }
}

bool IsMessage(const c10d::Work& work) {
  const c10d::OpType type = work.retrieveOpType();
  return type == c10d::OpType::SEND || type == c10d::OpType::RECV;
}

}  // namespace

BegunWork BegunWork::Gather(at::Tensor& whole, const at::Tensor& part, Ranks& ranks) {
  if (ranks.silent()) {
    at::Tensor places = whole.unflatten(0, {ranks.size(), whole.size(0) / ranks.size()});
    if (!whole.is_alias_of(part)) places.copy_(part.expand_as(places));
    return {};
  }
  at::Tensor given = part;
  return With(ranks, [&](auto& group) { return GatherOf(group, whole, given); });
}

BegunWork BegunWork::SumParts(at::Tensor& part, const at::Tensor& whole, Ranks& ranks) {
  if (ranks.silent()) {
    const std::int64_t length = whole.size(0) / ranks.size();
    if (!part.is_alias_of(whole)) part.copy_(whole.narrow(0, ranks.rank() * length, length));
    return {};
  }
  at::Tensor given = whole;
  return With(ranks, [&](auto& group) { return SumPartsOf(group, part, given); });
}

BegunWork BegunWork::Send(const at::Tensor& tensor, int to, int tag, Ranks& ranks) {
  std::vector<at::Tensor> tensors{tensor};
  return With(ranks, [&](auto& group) { return group.send(tensors, to, tag); });
}

BegunWork BegunWork::Receive(at::Tensor& tensor, int from, int tag, Ranks& ranks) {
  std::vector<at::Tensor> tensors{tensor};
  return With(ranks, [&](auto& group) { return group.recv(tensors, from, tag); });
}

void BegunWork::Wait() const {
  if (!work_) return;
  const Ranks::Waiting waiting(*ranks_);
  // Gloo's messages do not know the group's limit.
  ranks_->Guard([&] { IsMessage(*work_) ? work_->wait(waiting.limit()) : work_->wait(); });
}

}  // namespace plimsoll::train
