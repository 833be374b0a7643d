#include "train/parallel/sharded/flat_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "train/budget/host_memory.h"
#include "train/parallel/sharded/lent_memory.h"

namespace plimsoll::train {
namespace {

/// It gathers into a copy of the whole, and sums parts as all of a copy. Sent part by part, and
/// summed whole in place, it needs none, and is quicker.
bool IsGloo(Ranks& ranks, c10::Device device) {
  const auto& group = ranks.group();
  return !group || group->getBackend(device.type())->getBackendName() == "gloo";
}

}  // namespace

FlatGroup::FlatGroup(std::vector<at::Tensor> parameters, Ranks& ranks, const GroupForm& form)
    : parameters_(std::move(parameters)),
      ranks_(ranks),
      form_(form),
      part_dtype_(parameters_[0].scalar_type()) {
  const at::NoGradGuard no_grad;
  std::int64_t size = 0;
  for (const at::Tensor& parameter : parameters_) {
    offsets_.push_back(size);
    size += parameter.numel();
  }
  // Equal parts; what is left over at the end stays zero.
  const std::int64_t each = (size + ranks.size() - 1) / ranks.size();
  const auto options = parameters_[0].options().requires_grad(false);
  whole_ =
      at::zeros({each * ranks.size()}, options.dtype(form.compute_dtype.value_or(part_dtype_)));
  part_ = IsApart() ? NewPart(each) : whole_.narrow(0, each * ranks.rank(), each).detach();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (IsApart()) TakePart(i);
    const at::Tensor view = View(whole_, i);
    view.copy_(parameters_[i]);
    parameters_[i].set_data(view);
  }
  part_.requires_grad_();
  Release();
}

bool FlatGroup::IsApart() const {
  return form_.shard == Shard::kParameters || form_.offload || whole_.scalar_type() != part_dtype_;
}

at::Tensor FlatGroup::NewPart(std::int64_t elements) const {
  if (form_.offload) return HostTensor({elements}, part_dtype_, device().is_cuda()).zero_();
  return at::zeros({elements}, whole_.options().dtype(part_dtype_));
}

void FlatGroup::TakePart(std::size_t index) {
  const at::Tensor parameter = parameters_[index].detach().flatten();
  const std::int64_t part_begin = part_.numel() * ranks_.rank();
  const std::int64_t begin = std::max(offsets_[index], part_begin);
  const std::int64_t end =
      std::min(offsets_[index] + parameter.numel(), part_begin + part_.numel());
  if (begin >= end) return;
  part_.narrow(0, begin - part_begin, end - begin)
      .copy_(parameter.narrow(0, begin - offsets_[index], end - begin));
}

at::Tensor FlatGroup::View(const at::Tensor& whole, std::size_t index) const {
  return whole.narrow(0, offsets_[index], parameters_[index].numel())
      .view(parameters_[index].sizes());
}

at::Tensor FlatGroup::Own(const at::Tensor& whole) const {
  return whole.narrow(0, part_.numel() * ranks_.rank(), part_.numel());
}

void FlatGroup::BeginGather() {
  if (gathered_ || gathering_) return;
  const at::NoGradGuard no_grad;
  at::Tensor whole = whole_;
  if (form_.shard == Shard::kParameters) {
    whole = LendMemoryTo(whole_);
    if (alone_) whole.zero_();
  }
  // Nothing changes the part before its gradient has come, and that is waited for.
  if (IsApart()) Own(whole).copy_(part_, /*non_blocking=*/true);
  gathering_ = true;
  if (!alone_ && !ranks_.alone()) SendWhole(whole);
}

void FlatGroup::SendWhole(at::Tensor whole) {
  if (!IsGloo(ranks_, device())) {
    gather_works_.push_back(BegunWork::Gather(whole, Own(whole), ranks_));
    return;
  }
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<at::Tensor> part{whole.narrow(0, part_.numel() * rank, part_.numel())};
    c10d::BroadcastOptions options;
    options.rootRank = rank;
    gather_works_.push_back(
        BegunWork::With(ranks_, [&](auto& group) { return group.broadcast(part, options); }));
  }
}

void FlatGroup::Gather() {
  BeginGather();
  for (const BegunWork& work : gather_works_) work.Wait();
  gather_works_.clear();
  gathering_ = false;
  gathered_ = true;
}

void FlatGroup::Release() {
  if (form_.shard != Shard::kParameters || !(gathered_ || gathering_)) return;
  // What is on its way must have come before its place is gone.
  Gather();
  TakeMemoryFrom(whole_);
  gathered_ = false;
}

void FlatGroup::NewGradients() {
  // Those that are kept while pieces are added are not rounded each time.
  const bool as_sent = form_.send_bf16 && form_.shard != Shard::kOptimizerState;
  gradients_ =
      at::zeros(whole_.sizes(), whole_.options().dtype(as_sent ? at::kBFloat16 : part_dtype_));
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
  const bool in_place = form_.shard == Shard::kOptimizerState && gradient.dtype() == place.dtype();
  gradient = in_place ? place : at::Tensor();
  return ++arrived_ == parameters_.size();
}

void FlatGroup::BeginSum() {
  const at::NoGradGuard no_grad;
  if (!gradients_.defined()) NewGradients();
  sent_ = form_.send_bf16 ? gradients_.to(at::kBFloat16) : gradients_;
  if (IsGloo(ranks_, device())) {
    sum_ = Own(sent_);
    if (alone_ || ranks_.alone()) return;
    std::vector<at::Tensor> all{sent_};
    sum_work_ = BegunWork::With(ranks_, [&](auto& group) { return group.allreduce(all); });
  } else {
    sum_ = at::empty(part_.sizes(), sent_.options());
    if (alone_) {
      sum_.copy_(Own(sent_));
    } else {
      sum_work_ = BegunWork::SumParts(sum_, sent_, ranks_);
    }
  }
}

at::Tensor FlatGroup::ForPart(const at::Tensor& sum) const {
  if (form_.offload) return HostTensor(sum.sizes(), part_dtype_, device().is_cuda()).copy_(sum);
  return sum.to(part_dtype_);
}

void FlatGroup::FinishSum() {
  const at::NoGradGuard no_grad;
  std::exchange(sum_work_, {}).Wait();
  const at::Tensor sum = ForPart(sum_);
  at::Tensor& gradient = part_.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(sum);
  } else {
    gradient = sum.is_alias_of(sent_) ? sum.clone() : sum;
  }
  sum_.reset();
  sent_.reset();
  if (form_.shard == Shard::kOptimizerState) {
    gradients_.zero_();
  } else {
    gradients_.reset();
  }
}

void FlatGroup::DropGradients() {
  gradients_.reset();
  sent_.reset();
  sum_.reset();
  part_.mutable_grad().reset();
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  arrived_ = 0;
}

void FlatGroup::Abandon() {
  gather_works_.clear();
  sum_work_ = {};
  gathering_ = false;
  // Other ranks may not have come as far as this one.
  gathered_ = false;
  if (form_.shard == Shard::kParameters) TakeMemoryFrom(whole_);
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
  if (form_.shard == Shard::kParameters) return;
  gathered_ = gathered_before_alone_;
  const at::NoGradGuard no_grad;
  if (IsApart()) Own(whole_).copy_(part_);
}

Bytes FlatGroup::parameter_bytes() const {
  const auto whole = static_cast<Bytes>(whole_.storage().nbytes());
  return IsApart() && !form_.offload ? whole + static_cast<Bytes>(part_.nbytes()) : whole;
}

Bytes FlatGroup::gradient_bytes() const {
  Bytes bytes = 0;
  if (gradients_.defined()) bytes += static_cast<Bytes>(gradients_.nbytes());
  const bool here = part_.grad().defined() && !form_.offload;
  if (here) bytes += static_cast<Bytes>(part_.grad().nbytes());
  return bytes;
}

}  // namespace plimsoll::train
