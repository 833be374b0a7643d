#include "train/gradients/micro_batch.h"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

namespace plimsoll::train {
namespace {

/// Calls back with the rows of each piece.
template <class Function>
void ForEachPiece(const Batch& batch, const Pieces& pieces, Function function) {
  for (std::int64_t begin = 0; begin < batch.size(); begin += pieces.rows) {
    function(batch.Rows(begin, std::min(begin + pieces.rows, batch.size())));
  }
}

/// The loss of a piece as it counts in the whole.
at::Tensor Counted(const at::Tensor& value, const Shares& shares, std::size_t piece) {
  // Not for a batch in one piece: that is plain training, to the bit.
  if (shares.numbers[piece] == 1) return value;
  if (!shares.on_device.defined()) return value * shares.numbers[piece];
  // As a number is multiplied with: also by a loss in half precision in full.
  const auto type = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor share = shares.on_device[static_cast<std::int64_t>(piece)].to(type);
  return (value.to(type) * share).to(value.scalar_type());
}

}  // namespace

double WeightOf(const Batch& rows, const Pieces& pieces) {
  if (rows.size() == 0) return 0;
  return pieces.weight ? pieces.weight(rows) : static_cast<double>(rows.size());
}

Shares SharesOf(const Batch& batch, const Pieces& pieces) {
  TORCH_CHECK(pieces.rows >= 1, "a piece has at least one row");
  batch.CheckRows();
  TORCH_CHECK(pieces.reduction != Reduction::kWholeBatch || pieces.rows >= batch.size(),
              "a loss over the whole batch cannot be made of pieces");
  const double whole = WeightOf(batch, pieces);
  TORCH_CHECK(whole > 0, "there is nothing to learn from in this batch: its weight is ", whole);
  Shares shares;
  ForEachPiece(batch, pieces, [&](const Batch& rows) {
    const double weight = WeightOf(rows, pieces);
    const bool in_part = weight == 0 || pieces.reduction == Reduction::kMean;
    shares.numbers.push_back(in_part ? weight / whole : 1);
  });
  return shares;
}

at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch, const Pieces& pieces) {
  return AccumulateGradients(loss, batch, pieces, SharesOf(batch, pieces));
}

at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch, const Pieces& pieces,
                               const Shares& shares) {
  at::Tensor sum;
  std::size_t piece = 0;
  ForEachPiece(batch, pieces, [&](const Batch& rows) {
    const std::size_t here = piece++;
    if (shares.numbers[here] == 0) return;
    at::Tensor value = loss(rows);
    TORCH_CHECK(value.numel() == 1, "the loss must be one number, not ", value.sizes());
    value = Counted(value, shares, here);
    (pieces.scale ? pieces.scale(value) : value).backward();
    value = value.detach();
    sum = sum.defined() ? sum + value : value;
  });
  return sum;
}

bool MixesSamples(const torch::nn::Module& model) {
  namespace nn = torch::nn;
  for (const auto& module : model.modules()) {
    const bool batch_norm = module->as<nn::BatchNorm1dImpl>() != nullptr ||
                            module->as<nn::BatchNorm2dImpl>() != nullptr ||
                            module->as<nn::BatchNorm3dImpl>() != nullptr;
    if (batch_norm && module->is_training()) return true;
  }
  return false;
}

}  // namespace plimsoll::train
