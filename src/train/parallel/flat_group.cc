#include "train/parallel/flat_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>

#include <utility>

namespace plimsoll::train {
namespace {

/// What is read without memory is an error, in releases that can say so.
template <class Storage>
void SayWhereItIs(Storage& storage, bool away) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    if (away) {
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
          "these parameters are with all ranks, a part each; make a Sharded::Whole to see them");
    } else {
      storage.clear_data_ptr_access_error_msg_();
    }
  }
}

}  // namespace

FlatGroup::FlatGroup(std::vector<at::Tensor> parameters, Ranks& ranks, Shard shard)
    : parameters_(std::move(parameters)), ranks_(ranks), shard_(shard) {
  const at::NoGradGuard no_grad;
  std::int64_t size = 0;
  for (const at::Tensor& parameter : parameters_) {
    offsets_.push_back(size);
    size += parameter.numel();
  }
  // Equal parts; what is left over at the end stays zero.
  const std::int64_t each = (size + ranks.size() - 1) / ranks.size();
  whole_ = at::zeros({each * ranks.size()}, parameters_[0].options().requires_grad(false));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor view = View(whole_, i);
    view.copy_(parameters_[i]);
    parameters_[i].set_data(view);
  }
  part_ = whole_.narrow(0, each * ranks.rank(), each).detach();
  if (shard_ == Shard::kParameters) part_ = part_.clone();
  part_.requires_grad_();
  Release();
}

at::Tensor FlatGroup::View(const at::Tensor& whole, std::size_t index) const {
  return whole.narrow(0, offsets_[index], parameters_[index].numel())
      .view(parameters_[index].sizes());
}

at::Tensor FlatGroup::Own(const at::Tensor& whole) const {
  return whole.narrow(0, part_.numel() * ranks_.rank(), part_.numel());
}

/// Views stay views of it, and see what is there when it has memory again.
void FlatGroup::DropMemory() {
  c10::StorageImpl& storage = *whole_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, whole_.device()));
  storage.set_nbytes(0);
  SayWhereItIs(storage, /*away=*/true);
  memory_.reset();
}

void FlatGroup::TakeMemory() {
  memory_ = at::empty(whole_.sizes(), whole_.options());
  c10::StorageImpl& storage = *whole_.storage().unsafeGetStorageImpl();
  SayWhereItIs(storage, /*away=*/false);
  storage.set_nbytes(memory_.nbytes());
  const auto let_go = [](void* lent) { delete static_cast<at::Tensor*>(lent); };
  storage.set_data_ptr_noswap(
      at::DataPtr(memory_.data_ptr(), new at::Tensor(memory_), let_go, whole_.device()));
}

void FlatGroup::BeginGather() {
  if (gathered_ || gathering_) return;
  const at::NoGradGuard no_grad;
  at::Tensor whole = whole_;
  if (shard_ == Shard::kParameters) {
    TakeMemory();
    whole = memory_;
    if (alone_) whole.zero_();
    Own(whole).copy_(part_);
  }
  gathering_ = true;
  if (!alone_ && !ranks_.alone()) SendWhole(whole);
}

void FlatGroup::SendWhole(at::Tensor whole) {
  if (!IsGloo()) {
    gather_works_.push_back(ranks_.BeginGather(whole, Own(whole)));
    return;
  }
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<at::Tensor> part{whole.narrow(0, part_.numel() * rank, part_.numel())};
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    gather_works_.push_back(ranks_.Guard([&] { return ranks_.group()->broadcast(part, options); }));
  }
}

void FlatGroup::Gather() {
  BeginGather();
  for (const Ranks::Work& work : gather_works_) ranks_.Wait(work);
  gather_works_.clear();
  gathering_ = false;
  gathered_ = true;
}

void FlatGroup::Release() {
  if (shard_ != Shard::kParameters || !(gathered_ || gathering_)) return;
  // What is on its way must have come before its place is gone.
  Gather();
  DropMemory();
  gathered_ = false;
}

void FlatGroup::NewGradients() {
  gradients_ = at::zeros(whole_.sizes(), part_.options().requires_grad(false));
}

bool FlatGroup::TakeGradient(std::size_t index, bool counts) {
  const at::NoGradGuard no_grad;
  if (!counts) {
    parameters_[index].mutable_grad() = at::Tensor();
    return ++arrived_ == parameters_.size();
  }
  if (!gradients_.defined()) NewGradients();
  const at::Tensor place = View(gradients_, index);
  at::Tensor& gradient = parameters_[index].mutable_grad();
  if (!gradient.is_alias_of(place)) place.add_(gradient);
  // The next backward adds in place where gradients are kept.
  gradient = shard_ == Shard::kOptimizerState ? place : at::Tensor();
  return ++arrived_ == parameters_.size();
}

bool FlatGroup::IsGloo() const {
  const auto& group = ranks_.group();
  return !group || group->getBackend(whole_.device().type())->getBackendName() == "gloo";
}

void FlatGroup::BeginSum() {
  const at::NoGradGuard no_grad;
  if (!gradients_.defined()) NewGradients();
  if (IsGloo()) {
    sum_ = Own(gradients_);
    if (alone_ || ranks_.alone()) return;
    std::vector<at::Tensor> all{gradients_};
    sum_work_ = ranks_.Guard([&] { return ranks_.group()->allreduce(all); });
  } else {
    sum_ = at::empty_like(part_);
    if (alone_) {
      sum_.copy_(Own(gradients_));
    } else {
      sum_work_ = ranks_.BeginSumParts(sum_, gradients_);
    }
  }
}

void FlatGroup::FinishSum() {
  const at::NoGradGuard no_grad;
  ranks_.Wait(std::exchange(sum_work_, {}));
  at::Tensor& gradient = part_.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(sum_);
  } else {
    gradient = sum_.is_alias_of(gradients_) ? sum_.clone() : sum_;
  }
  sum_.reset();
  if (shard_ == Shard::kOptimizerState) {
    gradients_.zero_();
  } else {
    gradients_.reset();
  }
}

void FlatGroup::DropGradients() {
  gradients_.reset();
  sum_.reset();
  part_.mutable_grad().reset();
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  arrived_ = 0;
}

void FlatGroup::Abandon() {
  gather_works_.clear();
  sum_work_.reset();
  gathering_ = false;
  // Other ranks may not have come as far as this one.
  gathered_ = false;
  if (shard_ == Shard::kParameters) DropMemory();
  DropGradients();
}

void FlatGroup::BeginAlone() {
  TORCH_CHECK(!gathering_ && !sum_.defined(), "a step can be tried alone only between steps");
  gathered_before_alone_ = gathered_;
  alone_ = true;
}

void FlatGroup::EndAlone() {
  alone_ = false;
  Abandon();
  gathered_ = shard_ != Shard::kParameters && gathered_before_alone_;
}

Bytes FlatGroup::parameter_bytes() const {
  const auto whole = static_cast<Bytes>(whole_.storage().nbytes());
  return shard_ == Shard::kParameters ? whole + static_cast<Bytes>(part_.nbytes()) : whole;
}

Bytes FlatGroup::gradient_bytes() const {
  Bytes bytes = 0;
  if (gradients_.defined()) bytes += static_cast<Bytes>(gradients_.nbytes());
  if (part_.grad().defined()) bytes += static_cast<Bytes>(part_.grad().nbytes());
  return bytes;
}

}  // namespace plimsoll::train
