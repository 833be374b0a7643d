#include "train/parallel/sharded/sharded.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "train/checkpointing/checkpoint_policy.h"
#include "train/common/evaluating.h"
#include "train/common/metrics.h"

namespace plimsoll::train {
namespace {

struct Piece {
  Batch rows;
  double weight = 0;
};

/// Those with something to learn from.
std::vector<Piece> PiecesOf(const Batch& batch, const Pieces& pieces) {
  TORCH_CHECK(pieces.rows >= 1, "a piece has at least one row");
  std::vector<Piece> found;
  for (std::int64_t begin = 0; begin < batch.size(); begin += pieces.rows) {
    Piece piece{batch.Rows(begin, std::min(begin + pieces.rows, batch.size()))};
    piece.weight = WeightOf(piece.rows, pieces);
    if (piece.weight > 0) found.push_back(std::move(piece));
  }
  return found;
}

/// For a rank that has no rows left while others have: it must take part, whatever it computes. In
/// evaluation, so that nothing is learnt from it.
Batch OneRow(const Batch& batch) {
  if (batch.size() > 0) return batch.Rows(0, 1);
  Batch row;
  for (const at::Tensor& tensor : batch.tensors) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes[0] = 1;
    row.tensors.push_back(at::zeros(sizes, tensor.options()));
  }
  return row;
}

}  // namespace

Sharded::Sharded(torch::nn::Module& model, Ranks& ranks, const ShardedOptions& options)
    : model_(model),
      ranks_(ranks),
      shard_(options.shard),
      blocks_(model, ranks, options),
      sums_(blocks_.groups()) {}

std::vector<at::Tensor> Sharded::parts() const {
  std::vector<at::Tensor> parts;
  for (const auto& group : groups()) parts.push_back(group->part());
  return parts;
}

std::vector<at::Tensor> Sharded::parts(int kind) const {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < groups().size(); ++i) {
    if (blocks_.kinds()[i] == kind) parts.push_back(groups()[i]->part());
  }
  return parts;
}

void Sharded::Pass(GradientSums::Pass pass, const std::function<void()>& forward_and_backward) {
  sums_.Begin(pass);
  if (shard_ == Shard::kParameters) {
    blocks_.GatherOutside();
  } else {
    // Where a step was abandoned. All of them, since not every rank has rows for all blocks.
    blocks_.GatherAll();
  }
  forward_and_backward();
  sums_.Finish();
  blocks_.ReleaseAll();
}

at::Tensor Sharded::Forward(const LossFunction& loss, const Batch& rows) {
  const WatchBlocks watch(blocks_);
  return loss(rows);
}

at::Tensor Sharded::Backward(const LossFunction& loss, const Batch& rows, const Pieces& pieces,
                             double share) {
  const at::Tensor value = Forward(loss, rows) * share;
  (pieces.scale ? pieces.scale(value) : value).backward();
  return value.detach();
}

/// What all ranks have together.
struct Sharded::Plan {
  double weight = 0;
  /// The most that a rank has to make.
  std::size_t passes = 0;
};

Sharded::Plan Sharded::PlanOfAll(double weight, std::size_t passes) {
  // A trial is made with any batch.
  if (alone_) return {weight, std::max<std::size_t>(passes, 1)};
  at::Tensor all = at::zeros({ranks_.size() + 1}, at::kDouble);
  all[ranks_.rank()] = static_cast<double>(passes);
  all[ranks_.size()] = weight;
  ranks_.Sum(all);
  weight = all[ranks_.size()].item<double>();
  TORCH_CHECK(weight > 0, "there is nothing to learn from in this batch: its weight is ", weight);
  return {weight, static_cast<std::size_t>(all.narrow(0, 0, ranks_.size()).max().item<double>())};
}

at::Tensor Sharded::AddAll(const LossFunction& loss, const Batch& batch, const Pieces& pieces) {
  const std::vector<Piece> mine = PiecesOf(batch, pieces);
  double weight = 0;
  for (const Piece& piece : mine) weight += piece.weight;
  const Plan plan = PlanOfAll(weight, mine.size());
  const FlatGroup& any = *groups()[0];
  at::Tensor sum = at::zeros({}, at::TensorOptions(any.device()).dtype(any.part().scalar_type()));
  for (std::size_t pass = 0; pass < plan.passes; ++pass) {
    const bool send = shard_ != Shard::kOptimizerState || pass + 1 == plan.passes;
    const bool counts = pass < mine.size();
    Pass({.send = send, .counts = counts}, [&] {
      if (counts) {
        const bool mean = pieces.reduction != Reduction::kSum;
        sum += Backward(loss, mine[pass].rows, pieces, mean ? mine[pass].weight / plan.weight : 1);
      } else if (shard_ == Shard::kParameters) {
        // Blocks are gathered by all ranks, or by none.
        const Evaluating evaluating(model_);
        const UncountedMetrics uncounted;
        Backward(loss, OneRow(batch), pieces, 0);
      }
    });
  }
  if (!alone_) ranks_.Sum(sum);
  return sum;
}

at::Tensor Sharded::AccumulateGradients(const LossFunction& loss, const Batch& batch,
                                        const Pieces& pieces) {
  return ranks_.Guard([&] { return AddAll(loss, batch, pieces); });
}

double Sharded::Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) {
  const at::NoGradGuard no_grad;
  return ranks_.Guard([&] {
    const std::vector<Piece> mine = PiecesOf(batch, pieces);
    double weight = 0;
    for (const Piece& piece : mine) weight += piece.weight;
    const Plan plan = PlanOfAll(weight, mine.size());
    const bool mean = pieces.reduction != Reduction::kSum;
    double sum = 0;
    for (std::size_t pass = 0; pass < plan.passes; ++pass) {
      Pass({.send = false}, [&] {
        if (pass < mine.size()) {
          const double share = mean ? mine[pass].weight / plan.weight : 1;
          sum += share * Forward(loss, mine[pass].rows).item<double>();
        } else if (shard_ == Shard::kParameters) {
          const UncountedMetrics uncounted;
          Forward(loss, OneRow(batch));
        }
      });
    }
    return alone_ ? sum : ranks_.Sum(sum);
  });
}

double Sharded::ClipNorm(double most) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups()) {
    if (group->part().grad().defined()) gradients.push_back(group->part().grad());
  }
  double squares = 0;
  if (!gradients.empty()) {
    // Asked for once: a GPU is waited for.
    const at::Tensor norms = at::stack(at::_foreach_norm(gradients)).to(at::kDouble);
    squares = norms.dot(norms).item<double>();
  }
  const double norm = std::sqrt(alone_ ? squares : ranks_.Sum(squares));
  // As torch's clip_grad_norm_.
  const double factor = most / (norm + 1e-6);
  if (factor < 1 && !gradients.empty()) at::_foreach_mul_(gradients, factor);
  return norm;
}

void Sharded::Step(torch::optim::Optimizer& optimizer) {
  optimizer.step();
  PartsChanged();
}

void Sharded::PartsChanged() {
  if (shard_ == Shard::kParameters) return;
  for (const auto& group : groups()) group->Changed();
  blocks_.GatherAll();
}

void Sharded::ClearGradients() {
  for (const auto& group : groups()) group->DropGradients();
}

void Sharded::Abandon() {
  sums_.Forget();
  for (const auto& group : groups()) group->Abandon();
}

Sharded::Whole::Whole(Sharded& sharded) : sharded_(sharded) { sharded.blocks_.GatherAll(); }

Sharded::Whole::~Whole() { sharded_.blocks_.ReleaseAll(); }

Sharded::Alone::Alone(Sharded& sharded) : sharded_(sharded) {
  for (const auto& group : sharded.groups()) group->BeginAlone();
  sharded.alone_ = true;
}

Sharded::Alone::~Alone() {
  sharded_.alone_ = false;
  sharded_.sums_.Forget();
  for (const auto& group : sharded_.groups()) group->EndAlone();
}

Bytes Sharded::parameter_bytes() const {
  Bytes bytes = 0;
  for (const auto& group : groups()) bytes += group->parameter_bytes();
  return bytes;
}

Bytes Sharded::gradient_bytes() const {
  Bytes bytes = 0;
  for (const auto& group : groups()) bytes += group->gradient_bytes();
  return bytes;
}

}  // namespace plimsoll::train
