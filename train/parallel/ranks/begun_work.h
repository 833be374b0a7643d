// What ranks do together, or send to one another, begun only: it goes on by itself meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>

#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// Its tensors and its ranks must stay until it ends.
class BegunWork {
 public:
  /// Nothing: there is nothing to wait for. So it is for one rank alone, and in a rehearsal.
  BegunWork() = default;

  /// As the functions of Ranks.
  static BegunWork Gather(at::Tensor& whole, const at::Tensor& part, Ranks& ranks);
  static BegunWork SumParts(at::Tensor& part, const at::Tensor& whole, Ranks& ranks);
  /// To and from a member, by its place among them. Not for one rank alone.
  static BegunWork Send(const at::Tensor& tensor, int to, int tag, Ranks& ranks);
  static BegunWork Receive(at::Tensor& tensor, int from, int tag, Ranks& ranks);
  /// Whatever else the function begins with the group that it is given. Not for one rank alone.
  template <class Function>
  static BegunWork With(Ranks& ranks, Function&& function) {
    return {ranks, ranks.Guard([&] { return function(*ranks.group()); })};
  }

  /// Returns when it has ended.
  void Wait() const;

 private:
  BegunWork(Ranks& ranks, c10::intrusive_ptr<c10d::Work> work)
      : ranks_(&ranks), work_(std::move(work)) {}

  Ranks* ranks_ = nullptr;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace plimsoll::train
