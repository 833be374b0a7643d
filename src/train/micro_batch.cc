#include "train/micro_batch.h"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

namespace plimsoll::train {
namespace {

double WeightOf(const Batch& batch, const Pieces& pieces) {
  return pieces.weight ? pieces.weight(batch) : static_cast<double>(batch.size());
}

}  // namespace

at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch, const Pieces& pieces) {
  TORCH_CHECK(pieces.rows >= 1, "a piece has at least one row");
  batch.CheckRows();
  TORCH_CHECK(pieces.reduction != Reduction::kWholeBatch || pieces.rows >= batch.size(),
              "a loss over the whole batch cannot be made of pieces");
  const double whole = WeightOf(batch, pieces);
  TORCH_CHECK(whole > 0, "there is nothing to learn from in this batch: its weight is ", whole);
  at::Tensor sum;
  for (std::int64_t begin = 0; begin < batch.size(); begin += pieces.rows) {
    const Batch rows = batch.Rows(begin, std::min(begin + pieces.rows, batch.size()));
    const double weight = WeightOf(rows, pieces);
    if (weight == 0) continue;
    at::Tensor value = loss(rows);
    TORCH_CHECK(value.numel() == 1, "the loss must be one number, not ", value.sizes());
    // Not for a batch in one piece: that is plain training, to the bit.
    if (pieces.reduction == Reduction::kMean && weight != whole) value = value * (weight / whole);
    (pieces.scale ? pieces.scale(value) : value).backward();
    value = value.detach();
    sum = sum.defined() ? sum + value : value;
  }
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
