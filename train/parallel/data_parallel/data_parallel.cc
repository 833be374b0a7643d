#include "train/parallel/data_parallel/data_parallel.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "train/light/lora.h"
#include "train/parallel/ranks/broadcast_model.h"

namespace plimsoll::train {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// RAII guard: autograd does not know that views are views. Optimizer::zero_grad detaches
/// gradients in place, which it refuses for those that it knows.
using UntrackedViews = at::AutoDispatchBelowADInplaceOrView;

/// As torch's own for fp16, which cannot hold large gradients.
class SendBf16 : public c10d::CppCommHookInterface<Group> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor gradients = bucket.getBuffer();
    std::vector<at::Tensor> sent{gradients.div(state_->getSize()).to(c10::ScalarType::BFloat16)};
    const auto summed = state_->allreduce(sent)->getFuture();
    const auto take = [gradients](c10::ivalue::Future& future) {
      gradients.copy_(future.value().toTensorVector()[0]);
      return c10::IValue(gradients);
    };
    return summed->then(take, summed->elementType());
  }
};

/// Its constructor has grown from release to release.
template <class Reducer = c10d::Reducer>
std::shared_ptr<Reducer> NewReducer(const std::vector<at::Tensor>& parameters,
                                    const Buckets& buckets, const Group& group,
                                    const DataParallelOptions& options,
                                    std::unordered_map<std::size_t, std::string> names) {
  const std::vector<bool> sparse(parameters.size(), false);
  constexpr bool kViews = true;
  const auto make = [&](auto... more) {
    return std::make_shared<Reducer>(parameters, buckets, group, sparse, options.bucket,
                                     options.unused_parameters, kViews, names, options.first_bucket,
                                     more...);
  };
  // Still to be sent if unused anywhere; torch's reducer, not Python's; one size for all buckets.
  using Sizes = std::vector<std::int64_t>;
  using Names = std::unordered_map<std::size_t, std::string>;
  constexpr bool kNewest =
      std::is_constructible_v<Reducer, std::vector<at::Tensor>, Buckets, Group, std::vector<bool>,
                              std::int64_t, bool, bool, Names, std::int64_t, bool, bool, Sizes>;
  constexpr bool kNewer =
      std::is_constructible_v<Reducer, std::vector<at::Tensor>, Buckets, Group, std::vector<bool>,
                              std::int64_t, bool, bool, Names, std::int64_t, bool, bool>;
  if constexpr (kNewest) {
    return make(false, false, Sizes{});
  } else if constexpr (kNewer) {
    return make(false, false);
  } else {
    return make();
  }
}

/// Nothing, with gradients of zero for all: what makes the reducer send what is there.
at::Tensor ZeroOf(const std::vector<at::Tensor>& parameters) {
  at::Tensor zero;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor nothing = parameter.flatten().slice(0, 0, 0).sum().to(at::kFloat);
    zero = zero.defined() ? zero + nothing : nothing;
  }
  return zero;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& model, Ranks& ranks,
                           const DataParallelOptions& options)
    : model_(model), ranks_(ranks), parameters_(TrainedParameters(model)), options_(options) {
  TORCH_CHECK(options.bucket >= 1 && options.first_bucket >= 1, "a bucket of ",
              std::min(options.bucket, options.first_bucket), " bytes can hold no gradient.");
  TORCH_CHECK(!parameters_.empty(), "the model has no parameter that is trained.");
  if (ranks.alone()) return;
  if (options.sync_buffers) synced_buffers_ = model.buffers();
  BroadcastModel(model, ranks);
  NameParameters();
  on_break_ = ranks.OnBreak([this] {
    logger_.reset();
    reducer_.reset();
    waiting_.reset();
    begun_ = false;
    placed_ = false;
    sync_ = true;
  });
  MakeReducer();
}

DataParallel::~DataParallel() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) parameters_[i].remove_hook(hooks_[i]);
}

void DataParallel::NameParameters() {
  for (const auto& named : model_.named_parameters()) {
    const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                    [&](const auto& one) { return one.is_same(named.value()); });
    if (found != parameters_.end()) names_[found - parameters_.begin()] = named.key();
  }
  if (options_.unused_parameters) return;
  // Backward runs on threads of its own, each parameter on one.
  got_gradient_ = std::make_shared<std::vector<char>>(parameters_.size(), 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.push_back(parameters_[i].register_hook(
        [got = got_gradient_, i](const at::Tensor&) { (*got)[i] = 1; }));
  }
}

void DataParallel::MakeReducer() {
  const auto sizes = {static_cast<std::size_t>(options_.first_bucket),
                      static_cast<std::size_t>(options_.bucket)};
  Buckets buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters_, sizes));
  // Backward comes to the last parameters first.
  std::reverse(buckets.begin(), buckets.end());
  const UntrackedViews untracked;
  reducer_ = NewReducer(parameters_, buckets, ranks_.group(), options_, names_);
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options_.send_bf16) {
    reducer_->register_comm_hook(std::make_unique<SendBf16>(ranks_.group()));
  }
}

void DataParallel::BeginStep() {
  if (ranks_.alone() || begun_) return;
  ranks_.Guard([&] {
    if (!reducer_) MakeReducer();
    const UntrackedViews untracked;
    try {
      reducer_->rebuild_buckets();
    } catch (const c10::Error& error) {
      // Torch advises as Python names things.
      const std::string_view text = error.what_without_backtrace();
      TORCH_CHECK(
          text.find("Expected to have finished reduction") == text.npos,
          "some parameters got no gradient in the last backward, so that gradients were not "
          "sent; set DataParallelOptions::unused_parameters if that may be");
      throw;
    }
  });
  ranks_.Broadcast(synced_buffers_);
  begun_ = true;
}

at::Tensor DataParallel::Forward(const std::function<at::Tensor()>& loss) {
  if (ranks_.alone()) return loss();
  BeginStep();
  if (sync_) reducer_->prepare_for_forward();
  at::Tensor value = loss();
  if (sync_) {
    reducer_->prepare_for_backward(options_.unused_parameters ? std::vector<at::Tensor>{value}
                                                              : std::vector<at::Tensor>{});
    begun_ = false;
    // In the backward that follows.
    waiting_.emplace(ranks_);
  }
  return value;
}

void DataParallel::Reduce() {
  if (ranks_.alone() || !sync_) return;
  ranks_.Guard([&] { Forward([&] { return ZeroOf(parameters_); }).backward(); });
  waiting_.reset();
}

void DataParallel::PlaceGradients() {
  if (ranks_.alone() || placed_) return;
  ClearGradients();
  Reduce();
  // The reducer has found out the order of gradients and goes over to other buckets, once.
  Reduce();
  placed_ = true;
}

void DataParallel::ClearGradients() {
  for (at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (placed_ && gradient.defined()) {
      gradient.zero_();
    } else {
      gradient = at::Tensor();
    }
  }
}

at::Tensor DataParallel::AddPieces(const LossFunction& loss, const Batch& rows, Pieces pieces,
                                   double whole) {
  const double weight = WeightOf(rows, pieces);
  if (weight == 0) return {};
  const double share = pieces.reduction == Reduction::kSum ? 1 : weight / whole;
  // The reducer takes the mean over ranks, so that each has to give so many times its share.
  const double factor = share * ranks_.size();
  pieces.scale = [factor, outer = pieces.scale](const at::Tensor& value) {
    const at::Tensor scaled = value * factor;
    return outer ? outer(scaled) : scaled;
  };
  const auto forward = [&](const Batch& piece) { return Forward([&] { return loss(piece); }); };
  const at::Tensor sum = train::AccumulateGradients(forward, rows, pieces);
  waiting_.reset();
  return sum * share;
}

void DataParallel::CheckAllGotGradients() const {
  if (!got_gradient_ || !sync_) return;
  for (std::size_t i = 0; i < got_gradient_->size(); ++i) {
    TORCH_CHECK((*got_gradient_)[i] != 0, "the parameter '", names_.at(i),
                "' got no gradient on rank ", ranks_.rank(),
                ", so that gradients were not sent: they differ between ranks. Set "
                "DataParallelOptions::unused_parameters if that may be");
  }
}

at::Tensor DataParallel::AddShare(const LossFunction& loss, const Batch& batch,
                                  const Pieces& pieces, double whole) {
  TORCH_CHECK(pieces.rows >= 1, "a piece has at least one row");
  at::Tensor sum = at::zeros({}, parameters_[0].options().dtype(at::kFloat).requires_grad(false));
  const std::int64_t last = std::max<std::int64_t>(batch.size() - 1, 0) / pieces.rows * pieces.rows;
  {
    const NoSync no_sync(*this);
    const at::Tensor value = AddPieces(loss, batch.Rows(0, last), pieces, whole);
    if (value.defined()) sum += value;
  }
  if (got_gradient_) std::ranges::fill(*got_gradient_, 0);
  const at::Tensor value = AddPieces(loss, batch.Rows(last, batch.size()), pieces, whole);
  if (value.defined()) {
    CheckAllGotGradients();
    sum += value;
  } else {
    // The other ranks wait for what this one has.
    Reduce();
  }
  return sum;
}

at::Tensor DataParallel::AccumulateGradients(const LossFunction& loss, const Batch& batch,
                                             const Pieces& pieces) {
  if (ranks_.alone()) return train::AccumulateGradients(loss, batch, pieces);
  return ranks_.Guard([&] {
    BeginStep();
    const double whole = WeightOfAll(ranks_, batch, pieces);
    at::Tensor sum = AddShare(loss, batch, pieces, whole);
    ranks_.Sum(sum);
    return sum;
  });
}

double WeightOfAll(Ranks& ranks, const Batch& batch, const Pieces& pieces) {
  const double whole = ranks.Sum(WeightOf(batch, pieces));
  TORCH_CHECK(whole > 0, "there is nothing to learn from in this batch: its weight is ", whole);
  return whole;
}

}  // namespace plimsoll::train
