// One step on a batch that does not fit: in pieces, with the gradients of the whole.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "train/data/batch.h"

namespace plimsoll::train {

/// The loss of some rows. It must be the mean, or the sum, over whatever Weight counts.
using LossFunction = std::function<at::Tensor(const Batch&)>;
/// How many items the loss of some rows is about: samples, or tokens that are not ignored.
using WeightFunction = std::function<double(const Batch&)>;

enum class Reduction {
  kMean,
  kSum,
  /// Neither: rows are compared with each other, so that pieces would be something else.
  kWholeBatch,
};

struct Pieces {
  /// Rows in one piece; the last may have fewer.
  std::int64_t rows = 1;
  Reduction reduction = Reduction::kMean;
  /// Null: the number of rows.
  WeightFunction weight;
  /// Applied to each piece's loss before backward, as a gradient scaler wants it. May be null.
  std::function<at::Tensor(const at::Tensor&)> scale;
};

/// What the loss of these rows is about; 0 for none.
double WeightOf(const Batch& rows, const Pieces& pieces);

/// Adds the gradients of the whole batch's loss to the parameters, one piece at a time, and returns
/// that loss without its graph. A piece with nothing in it to learn from (weight 0) is passed over.
at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch, const Pieces& pieces);

/// What the loss of each piece counts in the whole batch's.
struct Shares {
  /// 0: there is nothing in the piece to learn from. 1: it counts as it is.
  std::vector<double> numbers;
  /// The same on the device, where that is defined: a CUDA graph reads them from there.
  at::Tensor on_device;
};

Shares SharesOf(const Batch& batch, const Pieces& pieces);
/// With shares that are known.
at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch, const Pieces& pieces,
                               const Shares& shares);

/// Whether the result depends on which samples are together: batch normalization in training. Then
/// pieces train another model than the whole batch does.
bool MixesSamples(const torch::nn::Module& model);

}  // namespace plimsoll::train
