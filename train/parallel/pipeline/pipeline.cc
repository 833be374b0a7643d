#include "train/parallel/pipeline/pipeline.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "train/light/lora.h"
#include "train/parallel/ranks/broadcast_model.h"

namespace plimsoll::train {
namespace {

std::vector<int> AgreedSplit(const PipelineOptions& options, std::size_t layers, int parts,
                             Ranks& ranks) {
  const std::vector<int> split =
      options.split.empty() ? EvenSplit(static_cast<int>(layers), parts) : options.split;
  TORCH_CHECK(std::cmp_equal(split.size(), parts), "the pipeline has ", parts,
              " parts, and the split is one of ", split.size(), ".");
  const at::Tensor agreed = at::tensor(split);
  ranks.Broadcast({agreed});
  const int* begin = agreed.const_data_ptr<int>();
  return {begin, begin + parts};
}

/// Each tensor becomes the mean over ranks, several of one type sent as one. One that no rank has
/// stays undefined.
class MeanOverRanks {
 public:
  explicit MeanOverRanks(Ranks& ranks) : ranks_(ranks) {}

  void OfGradients(const std::vector<at::Tensor>& parameters) {
    if (ranks_.alone() || parameters.empty()) return;
    const at::NoGradGuard no_grad;
    at::Tensor there = at::empty({static_cast<std::int64_t>(parameters.size())}, at::kFloat);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      there.data_ptr<float>()[i] = parameters[i].grad().defined() ? 1.0F : 0.0F;
    }
    ranks_.Sum(there);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (there.const_data_ptr<float>()[i] > 0) Add(parameters[i]);
    }
    Close();
  }

 private:
  void Add(const at::Tensor& parameter) {
    constexpr Bytes kAtOnce = 25 * kMiB;
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter);
    if (!bucket_.empty() && bucket_[0].dtype() != gradient.dtype()) Close();
    bucket_.push_back(gradient);
    bytes_ += static_cast<Bytes>(gradient.nbytes());
    if (bytes_ >= kAtOnce) Close();
  }

  void Close() {
    if (bucket_.empty()) return;
    at::Tensor flat = bucket_.size() == 1 && bucket_[0].is_contiguous() ? bucket_[0].view(-1)
                                                                        : at::cat(Flattened());
    ranks_.Sum(flat);
    flat.div_(ranks_.size());
    std::int64_t at = 0;
    for (at::Tensor& gradient : bucket_) {
      const at::Tensor part = flat.narrow(0, at, gradient.numel());
      if (!part.is_alias_of(gradient)) gradient.copy_(part.view(gradient.sizes()));
      at += gradient.numel();
    }
    bucket_.clear();
    bytes_ = 0;
  }

  std::vector<at::Tensor> Flattened() const {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : bucket_) flat.push_back(gradient.flatten());
    return flat;
  }

  Ranks& ranks_;
  std::vector<at::Tensor> bucket_;
  Bytes bytes_ = 0;
};

}  // namespace

Pipeline::Pipeline(ModelLayers layers, Ranks& ranks, const PipelineOptions& options)
    : ranks_(ranks), device_(options.device) {
  CheckRanks(options);
  shape_.stages = options.stages == 0 ? ranks.size() : options.stages;
  shape_.chunks = shape_.stages == 1 ? 1 : options.chunks;
  pipelines_ = ranks.size() / shape_.stages;
  stage_number_ = ranks.rank() / pipelines_;
  pipeline_ = ranks.rank() % pipelines_;
  split_ = shape_.stages == 1 ? std::vector<int>{static_cast<int>(layers.size())}
                              : AgreedSplit(options, layers.size(), shape_.parts(), ranks);
  stage_ = std::make_unique<PipelineStage>(std::move(layers), split_, shape_, stage_number_,
                                           device_, options.checkpoint);
  trained_ = TrainedParameters(model());
  MakeGroups();
  Connect();
  BeginAlike();
}

void Pipeline::CheckRanks(const PipelineOptions& options) const {
  TORCH_CHECK(ranks_.size() == ranks_.launch().size,
              "a pipeline is made by all ranks that were started.");
  TORCH_CHECK(options.stages >= 0 && options.chunks >= 1, "there is no pipeline of ",
              options.stages, " stages with ", options.chunks, " chunks each.");
  TORCH_CHECK(options.stages == 0 || ranks_.size() % options.stages == 0, ranks_.size(),
              " ranks cannot be pipelines of ", options.stages, " stages.");
}

/// Groups with the same members are one: each is connected by itself, which takes its time.
Ranks* Pipeline::GroupOf(const std::vector<int>& members) {
  if (std::cmp_equal(members.size(), ranks_.size())) return &ranks_;
  std::unique_ptr<Ranks>& group = groups_[members];
  if (!group) group = ranks_.Some(members);
  return group.get();
}

void Pipeline::MakeGroups() {
  const auto member = [&](int stage) { return stage * pipelines_ + pipeline_; };
  std::vector<int> members;
  for (int stage = 0; stage < shape_.stages; ++stage) members.push_back(member(stage));
  ways_ = std::make_unique<PipelineWays>(ranks_, members, shape_.chunks, device_);
  members.clear();
  for (int i = 0; i < pipelines_; ++i) members.push_back(stage_number_ * pipelines_ + i);
  same_stage_ = GroupOf(members);
  for (const TiedParameter& tied : stage_->tied()) {
    members.clear();
    for (const int holder : tied.holders) members.push_back(member(holder));
    holders_.push_back(GroupOf(members));
  }
}

/// All ranks in one order, so that none waits for another that waits for it. Again when a Try did
/// not go well.
void Pipeline::Connect() {
  ways_->Connect();
  for (const auto& [members, group] : groups_) group->group();
}

void Pipeline::BeginAlike() {
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    holders_[i]->Broadcast({stage_->tied()[i].parameter.detach()});
  }
  if (!trained_.empty()) return BroadcastModel(model(), *same_stage_);
  // That would compare what is trained.
  for (const auto& tensors : {model().parameters(), model().buffers()}) {
    for (const at::Tensor& tensor : tensors) same_stage_->Broadcast({tensor.detach()});
  }
}

std::vector<MicroBatch> Pipeline::MicroBatchesOf(const Batch& batch, const Pieces& pieces) {
  TORCH_CHECK(pieces.rows >= 1, "a piece has at least one row");
  const bool whole_batch = pieces.reduction == Reduction::kWholeBatch;
  TORCH_CHECK(!whole_batch || (pieces.rows >= batch.size() && pipelines_ == 1),
              "a loss over the whole batch cannot be made of pieces");
  std::vector<MicroBatch> found;
  double sum = 0;
  for (std::int64_t begin = 0; begin < batch.size(); begin += pieces.rows) {
    MicroBatch one{batch.Rows(begin, std::min(begin + pieces.rows, batch.size()))};
    one.share = WeightOf(one.rows, pieces);
    sum += one.share;
    if (one.share > 0) found.push_back(std::move(one));
  }
  const double whole = same_stage_->Sum(sum);
  TORCH_CHECK(whole > 0, "there is nothing to learn from in this batch: its weight is ", whole);
  for (MicroBatch& one : found) {
    one.share = pieces.reduction == Reduction::kMean ? one.share / whole : 1;
  }
  return found;
}

at::Tensor Pipeline::Run(const std::vector<MicroBatch>& micro_batches, const Pieces& pieces) {
  PipelineShape shape = shape_;
  shape.micro_batches = static_cast<int>(micro_batches.size());
  // The mean over pipelines is taken, so that gradients of earlier calls, which are the same on
  // all, stay as they are.
  const auto for_backward = [&](const at::Tensor& value) {
    const at::Tensor counted = pipelines_ == 1 ? value : value * pipelines_;
    return pieces.scale ? pieces.scale(counted) : counted;
  };
  PipelineMessages messages(*ways_, shape, device_);
  PipelineStep step(*stage_, messages, shape, micro_batches, for_backward);
  std::vector<PipelineAction> actions = Schedule(shape, stage_number_);
  if (!at::GradMode::is_enabled()) std::erase_if(actions, std::mem_fn(&PipelineAction::backward));
  const at::Tensor loss = step.Run(actions);
  return loss.defined() ? loss.to(at::kFloat)
                        : at::zeros({}, at::device(device_).dtype(at::kFloat));
}

at::Tensor Pipeline::AccumulateGradients(const Batch& batch, const Pieces& pieces) {
  return ranks_.Guard([&] {
    Connect();
    same_stage_->Broadcast(model().buffers());
    // Each holder adds what it finds, and the sum is of that alone.
    std::vector<at::Tensor> earlier;
    for (const TiedParameter& tied : stage_->tied()) {
      earlier.push_back(std::exchange(tied.parameter.mutable_grad(), {}));
    }
    at::Tensor loss = Run(MicroBatchesOf(batch, pieces), pieces);
    MeanOverRanks(*same_stage_).OfGradients(trained_);
    SumTied(earlier);
    ranks_.Sum(loss);
    return loss;
  });
}

double Pipeline::Evaluate(const Batch& batch, const Pieces& pieces) {
  const at::NoGradGuard no_grad;
  return ranks_.Guard([&] {
    Connect();
    at::Tensor loss = Run(MicroBatchesOf(batch, pieces), pieces);
    ranks_.Sum(loss);
    return loss.item<double>();
  });
}

void Pipeline::SumTied(const std::vector<at::Tensor>& earlier) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < earlier.size(); ++i) {
    const at::Tensor& parameter = stage_->tied()[i].parameter;
    if (!parameter.requires_grad()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter);
    holders_[i]->Sum(gradient);
    if (earlier[i].defined()) gradient.add_(earlier[i]);
  }
}

double Pipeline::ClipNorm(double most) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  double squares = 0;
  for (const at::Tensor& parameter : trained_) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    const auto& all = stage_->tied();
    const auto tied = std::ranges::find_if(
        all, [&](const TiedParameter& one) { return one.parameter.is_same(parameter); });
    // The first that has it counts it.
    if (tied != all.end() && tied->holders[0] != stage_number_) continue;
    squares += std::pow(parameter.grad().norm().item<double>(), 2);
  }
  const double norm = std::sqrt(ways_->all().Sum(squares));
  // As torch's clip_grad_norm_.
  const double factor = most / (norm + 1e-6);
  for (at::Tensor& gradient : gradients) {
    if (factor < 1) gradient.mul_(factor);
  }
  return norm;
}

}  // namespace plimsoll::train
