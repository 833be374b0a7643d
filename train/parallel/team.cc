#include "train/parallel/team.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>

#include <map>
#include <utility>

#include "train/budget/memory.h"
#include "train/gradients/recovery.h"
#include "train/light/lora.h"
#include "train/parallel/ranks/agreement.h"

namespace plimsoll::train {
namespace {

using Optimizers = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

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
    if (ranks_.rehearsing()) return AccumulateGradients(loss, batch, pieces);
    parallel_.PlaceGradients();
    return parallel_.AccumulateGradients(loss, batch, pieces);
  }
  std::shared_ptr<void> BeginTrial() override { return std::make_shared<Ranks::Rehearsal>(ranks_); }
  void ClearGradients() override { parallel_.ClearGradients(); }

 private:
  DataParallel parallel_;
};

/// Each rank keeps a part of what optimizers step, and perhaps of gradients and parameters.
class ShardedTeam final : public Team {
 public:
  ShardedTeam(torch::nn::Module& model, Ranks& ranks, ShardedOptions options,
              const Optimizers& optimizers)
      : Team(ranks), model_(model), shard_(options.shard) {
    for (const auto& optimizer : optimizers) {
      for (const auto& group : optimizer->param_groups()) {
        const int kind = kinds_++;
        for (const at::Tensor& one : group.params()) kind_of_[one.unsafeGetTensorImpl()] = kind;
      }
    }
    TORCH_CHECK(!options.kind, "a trainer keeps the groups of its optimizers apart by itself");
    options.kind = [this](const at::Tensor& one) {
      const auto found = kind_of_.find(one.unsafeGetTensorImpl());
      return found == kind_of_.end() ? kinds_ : found->second;
    };
    sharded_.emplace(model, ranks, options);
    on_break_ = ranks.OnBreak([this] { sharded_->Abandon(); });
  }

  void Adopt(torch::optim::Optimizer& optimizer) override {
    for (auto& group : optimizer.param_groups()) {
      if (group.params().empty()) continue;
      const auto found = kind_of_.find(group.params()[0].unsafeGetTensorImpl());
      TORCH_CHECK(found != kind_of_.end(), "an optimizer has a parameter that none had before");
      group.params() = sharded_->parts(found->second);
    }
  }

  at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                          const Pieces& pieces) override {
    return sharded_->AccumulateGradients(loss, batch, pieces);
  }
  std::shared_ptr<void> BeginTrial() override {
    return std::make_shared<Sharded::Alone>(*sharded_);
  }
  double Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) override {
    return sharded_->Evaluate(loss, batch, pieces);
  }
  void ClearGradients() override { sharded_->ClearGradients(); }
  NamedTensors gradients() const override {
    NamedTensors list;
    for (const auto& group : sharded_->groups()) {
      const at::Tensor& gradient = group->part().grad();
      if (gradient.defined()) list.emplace_back(NameOf(*group), gradient);
    }
    return list;
  }
  void ClipNorm(double most) override { sharded_->ClipNorm(most); }
  bool OnAll(bool finite) override { return ranks_.Sum(finite ? 0.0 : 1.0) == 0; }
  void AfterStep() override { sharded_->PartsChanged(); }

  bool in_step() const override { return true; }
  Sharded* sharded() override { return &*sharded_; }
  std::shared_ptr<void> WholeModel() override {
    return std::make_shared<Sharded::Whole>(*sharded_);
  }
  Bytes parameter_bytes() const override { return sharded_->parameter_bytes(); }
  Bytes gradient_bytes() const override {
    return BytesOf(sharded_->parts()) * (shard_ == Shard::kOptimizerState ? ranks_.size() : 1);
  }

 private:
  /// Where it is not known which of them it is.
  std::string NameOf(const FlatGroup& group) const {
    const auto& parameters = group.parameters();
    const std::size_t others = parameters.size() - 1;
    for (const auto& item : model_.named_parameters()) {
      if (!item.value().is_same(parameters[0])) continue;
      return others == 0 ? item.key()
                         : c10::str(item.key(), "' or of one of the ", others,
                                    " parameters sent with '", item.key());
    }
    return "a parameter";
  }

  torch::nn::Module& model_;
  Shard shard_;
  /// Group by group of all optimizers.
  int kinds_ = 0;
  std::map<const void*, int> kind_of_;
  std::optional<Sharded> sharded_;
  std::shared_ptr<void> on_break_;
};

/// Ranks share layers, each with a part of their weights; other ranks have the same parts, and rows
/// of their own.
class TensorTeam final : public Team {
 public:
  TensorTeam(torch::nn::Module& model, Ranks& ranks, const TeamOptions& options)
      : Team(ranks), tensor_(options.tensor), mesh_(options.mesh) {
    if (mesh_ && mesh_->size(Dimension::kData) > 1) {
      rows_ = std::make_unique<DataParallelTeam>(model, mesh_->along(Dimension::kData),
                                                 options.data_parallel);
    } else {
      rows_ = std::make_unique<AloneTeam>(model);
    }
  }

  at::Tensor AddGradients(const LossFunction& loss, const Batch& batch,
                          const Pieces& pieces) override {
    return rows_->AddGradients(loss, batch, pieces);
  }
  std::shared_ptr<void> BeginTrial() override { return std::make_shared<Ranks::Rehearsal>(ranks_); }
  double Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) override {
    return rows_->Evaluate(loss, batch, pieces);
  }
  void ClearGradients() override { rows_->ClearGradients(); }
  NamedTensors gradients() const override { return rows_->gradients(); }
  void ClipNorm(double most) override { tensor_->ClipNorm(most); }
  bool OnAll(bool finite) override { return ranks_.Sum(finite ? 0.0 : 1.0) == 0; }
  bool in_step() const override { return true; }
  std::optional<Part> part() const override {
    const Ranks& sharing = tensor_->ranks();
    return Part{.cut = c10::str("layers split among ", sharing.size(), " ranks"),
                .number = sharing.rank(),
                .parts = sharing.size(),
                .first = !mesh_ || mesh_->coordinate(Dimension::kData) == 0};
  }
  std::shared_ptr<void> WholeModel() override {
    return std::make_shared<TensorParallel::WholeModel>(*tensor_);
  }
  Bytes parameter_bytes() const override { return rows_->parameter_bytes(); }
  Bytes gradient_bytes() const override { return rows_->gradient_bytes(); }

 private:
  std::shared_ptr<TensorParallel> tensor_;
  std::shared_ptr<Mesh> mesh_;
  std::unique_ptr<Team> rows_;
};

/// Ranks have different layers, and rows go from one to the next.
class PipelineTeam final : public WholeModelTeam {
 public:
  PipelineTeam(torch::nn::Module& model, Ranks& ranks, std::shared_ptr<Pipeline> pipeline)
      : WholeModelTeam(model, ranks), pipeline_(std::move(pipeline)) {
    TORCH_CHECK(&model == &pipeline_->model(),
                "a trainer over a pipeline trains the pipeline's model, shared_model()");
  }

  void UseForwardScope(ForwardScope scope) override {
    pipeline_->set_forward_scope(std::move(scope));
  }
  at::Tensor AddGradients(const LossFunction& /*loss*/, const Batch& batch,
                          const Pieces& pieces) override {
    return pipeline_->AccumulateGradients(batch, pieces);
  }
  bool tries_alone() const override { return false; }
  std::shared_ptr<void> BeginTrial() override { return {}; }
  /// Then ranks wait for about a fifth of the time. More pieces would make each less work.
  std::int64_t UsualRows(std::int64_t rows) const override {
    const std::int64_t pieces = 4 * std::int64_t{pipeline_->stages()};
    return std::max<std::int64_t>(1, (rows + pieces - 1) / pieces);
  }
  double Evaluate(const LossFunction& /*loss*/, const Batch& batch, const Pieces& pieces) override {
    return pipeline_->Evaluate(batch, pieces);
  }
  void ClearGradients() override { train::ClearGradients(model_); }
  void ClipNorm(double most) override { pipeline_->ClipNorm(most); }
  bool OnAll(bool finite) override { return ranks_.Sum(finite ? 0.0 : 1.0) == 0; }
  bool in_step() const override { return true; }
  std::optional<Part> part() const override {
    return Part{.cut = c10::str("a pipeline of ", pipeline_->stages(), " stages with parts of ",
                                pipeline_->split(), " layers"),
                .number = pipeline_->stage(),
                .parts = pipeline_->stages(),
                .first = pipeline_->pipeline() == 0};
  }

 private:
  std::shared_ptr<Pipeline> pipeline_;
};

void CheckTogether(const TeamOptions& options) {
  const int ways = (options.shard ? 1 : 0) + (options.pipeline ? 1 : 0) + (options.tensor ? 1 : 0);
  TORCH_CHECK(ways <= 1,
              "a trainer shards, or has a pipeline, or shares layers; to do several at "
              "once, use Sharded, Pipeline and TensorParallel without it");
  TORCH_CHECK(!options.mesh || options.tensor,
              "a mesh says which ranks share layers, and `tensor` has none");
  TORCH_CHECK(!options.mesh || options.mesh->size(Dimension::kPipeline) == 1,
              "a trainer's mesh has the dimensions kData and kTensor alone");
}

}  // namespace

std::unique_ptr<Team> MakeTeam(torch::nn::Module& model, Ranks* ranks, const TeamOptions& options,
                               const Optimizers& optimizers) {
  CheckTogether(options);
  if (options.pipeline && ranks != nullptr) {
    return std::make_unique<PipelineTeam>(model, *ranks, options.pipeline);
  }
  TORCH_CHECK(!options.pipeline, "a trainer over a pipeline needs its ranks");
  if (ranks == nullptr || ranks->alone()) return std::make_unique<AloneTeam>(model);
  std::unique_ptr<Team> team;
  DoTogether(*ranks, [&] {
    if (options.tensor) {
      team = std::make_unique<TensorTeam>(model, *ranks, options);
      return;
    }
    if (!options.shard) {
      team = std::make_unique<DataParallelTeam>(model, *ranks, options.data_parallel);
      return;
    }
    ShardedOptions sharded = options.sharded;
    sharded.shard = *options.shard;
    team = std::make_unique<ShardedTeam>(model, *ranks, sharded, optimizers);
  });
  return team;
}

}  // namespace plimsoll::train
