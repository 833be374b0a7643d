#include "train/parallel/flat_group.h"

#include <ATen/ops/empty.h>
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

/// Views stay views of it, and see what is there when it has memory again.
void DropMemory(const at::Tensor& whole) {
  c10::StorageImpl& storage = *whole.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, whole.device()));
  storage.set_nbytes(0);
  SayWhereItIs(storage, /*away=*/true);
}

void TakeMemory(const at::Tensor& whole) {
  const at::Tensor fresh = at::empty({whole.numel()}, whole.options().requires_grad(false));
  c10::StorageImpl& from = *fresh.storage().unsafeGetStorageImpl();
  c10::StorageImpl& storage = *whole.storage().unsafeGetStorageImpl();
  SayWhereItIs(storage, /*away=*/false);
  storage.set_nbytes(from.nbytes());
  storage.set_data_ptr_noswap(std::move(from.mutable_data_ptr()));
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
  if (shard_ == Shard::kOptimizerState) NewGradients();
  Release();
}

at::Tensor FlatGroup::View(const at::Tensor& whole, std::size_t index) const {
  return whole.narrow(0, offsets_[index], parameters_[index].numel())
      .view(parameters_[index].sizes());
}

void FlatGroup::BeginGather() {
  if (gathered_ || gathering_) return;
  const at::NoGradGuard no_grad;
  if (shard_ == Shard::kParameters) TakeMemory(whole_);
  gather_work_ = ranks_.BeginGather(whole_, part_.detach());
  gathering_ = true;
}

void FlatGroup::Gather() {
  BeginGather();
  ranks_.Wait(std::exchange(gather_work_, {}));
  gathering_ = false;
  gathered_ = true;
}

void FlatGroup::Release() {
  if (shard_ != Shard::kParameters || !(gathered_ || gathering_)) return;
  // What is on its way must have come before its place is gone.
  Gather();
  DropMemory(whole_);
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

void FlatGroup::BeginSum() {
  const at::NoGradGuard no_grad;
  if (!gradients_.defined()) NewGradients();
  sum_ = at::empty(part_.sizes(), part_.options().requires_grad(false));
  sum_work_ = ranks_.BeginSumParts(sum_, gradients_);
}

void FlatGroup::FinishSum() {
  const at::NoGradGuard no_grad;
  ranks_.Wait(std::exchange(sum_work_, {}));
  if (shard_ == Shard::kOptimizerState) {
    gradients_.zero_();
  } else {
    gradients_.reset();
  }
  at::Tensor& gradient = part_.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(sum_);
  } else {
    gradient = sum_;
  }
  sum_.reset();
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
