#include "train/parallel/team.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>

#include <map>
#include <utility>

#include "train/light/lora.h"
#include "train/recovery.h"

namespace plimsoll::train {
namespace {

using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

Bytes BytesOf(const std::vector<at::Tensor>& tensors) {
  Bytes bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<Bytes>(tensor.nbytes());
  return bytes;
}

double WeightOf(const Batch& rows, const Pieces& pieces) {
  if (rows.size() == 0) return 0;
  return pieces.weight ? pieces.weight(rows) : static_cast<double>(rows.size());
}

/// The loss of all ranks' rows where each computes its own.
double EvaluateOwn(Ranks& ranks, const LossFunction& loss, const Batch& batch,
                   const Pieces& pieces) {
  const torch::NoGradGuard no_grad;
  const bool mean = pieces.reduction != Reduction::kSum;
  double sum = 0;
  double whole = 0;
  for (std::int64_t begin = 0; begin < batch.size(); begin += pieces.rows) {
    const Batch rows = batch.Rows(begin, std::min(begin + pieces.rows, batch.size()));
    const double weight = WeightOf(rows, pieces);
    if (weight == 0) continue;
    sum += loss(rows).item<double>() * (mean ? weight : 1);
    whole += weight;
  }
  sum = ranks.Sum(sum);
  return mean ? sum / ranks.Sum(whole) : sum;
}

/// Each rank has all of the model.
class WholeModelTeam : public Team {
 public:
  WholeModelTeam(torch::nn::Module& model, Ranks& ranks) : Team(ranks), model_(model) {}

  double Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) override {
    return EvaluateOwn(ranks_, loss, batch, pieces);
  }
  NamedTensors gradients() const override {
    NamedTensors list;
    for (const auto& item : model_.named_parameters()) {
      if (item.value().grad().defined()) list.emplace_back(item.key(), item.value().grad());
    }
    return list;
  }
  void ClipNorm(double most) override {
    torch::nn::utils::clip_grad_norm_(model_.parameters(), most);
  }
  Bytes parameter_bytes() const override { return BytesOf(model_.parameters()); }
  Bytes gradient_bytes() const override { return BytesOf(TrainedParameters(model_)); }

 protected:
  torch::nn::Module& model_;
};

class AloneTeam final : public WholeModelTeam {
 public:
  explicit AloneTeam(torch::nn::Module& model) : WholeModelTeam(model, alone_) {}

  at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                          const Pieces& pieces) override {
    return AccumulateGradients(loss, batch, pieces);
  }
  std::shared_ptr<void> BeginTrial() override { return {}; }
  void ClearGradients() override { train::ClearGradients(model_); }

 private:
  Ranks alone_;
};

class DataParallelTeam final : public WholeModelTeam {
 public:
  DataParallelTeam(torch::nn::Module& model, Ranks& ranks, const DataParallelOptions& options)
      : WholeModelTeam(model, ranks), parallel_(model, ranks, options) {
    parallel_.PlaceGradients();
  }

  at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                          const Pieces& pieces) override {
    if (trials_ > 0) return AccumulateGradients(loss, batch, pieces);
    parallel_.PlaceGradients();
    return parallel_.AccumulateGradients(loss, batch, pieces);
  }
  std::shared_ptr<void> BeginTrial() override {
    ++trials_;
    return {nullptr, [this](void*) { --trials_; }};
  }
  void ClearGradients() override { parallel_.ClearGradients(); }

 private:
  DataParallel parallel_;
  int trials_ = 0;
};

}  // namespace

std::unique_ptr<Team> MakeTeam(torch::nn::Module& model, Ranks* ranks, const TeamOptions& options,
                               const Optimizers& optimizers) {
  if (ranks == nullptr || ranks->alone()) return std::make_unique<AloneTeam>(model);
  if (!options.shard) {
    return std::make_unique<DataParallelTeam>(model, *ranks, options.data_parallel);
  }
  ShardedOptions sharded = options.sharded;
  sharded.shard = *options.shard;
  (void)optimizers;
  return nullptr;
}

}  // namespace plimsoll::train
