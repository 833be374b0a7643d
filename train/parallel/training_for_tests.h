// A training that can be split among ranks in any way, for tests: twenty steps of a small model on
// batches that follow from the step's number.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "train/common/nightly_for_tests.h"
#include "train/gradients/micro_batch.h"
#include "train/models/gpt.h"
#include "train/models/mlp.h"
#include "train/models/model_layers.h"
#include "train/parallel/ranks/launch.h"

namespace plimsoll::train {

inline const int kSteps = Nightly(20, 6);

/// How many ranks train together: of four one has no rows in some steps. Two differ in nothing that
/// matters by day.
inline std::vector<int> SizesToTry() { return IsNightly() ? std::vector{2, 4} : std::vector{4}; }

/// "mlp", "gpt", "deep gpt", or "four heads": a GPT that four ranks can share, with 8 positions.
/// Its parameters follow from the seed.
inline std::shared_ptr<TrainModel> SmallModel(const std::string& name, std::uint64_t seed) {
  torch::manual_seed(seed);
  if (name == "mlp") {
    return std::make_shared<Mlp>(MlpOptions{.inputs = 12, .hidden = 16, .classes = 5});
  }
  if (name == "four heads") {
    return std::make_shared<Gpt>(GptOptions{
        .vocabulary = 17, .context = 8, .width = 16, .layers = 2, .heads = 4, .padded = true});
  }
  return std::make_shared<Gpt>(GptOptions{.vocabulary = 17,
                                          .context = 6,
                                          .width = 8,
                                          .layers = name == "gpt" ? 2 : 6,
                                          .heads = 2,
                                          .padded = true});
}

/// Most steps have 8 rows, each third one has fewer: 3, so that one of four ranks has none.
inline Batch WholeBatch(const std::string& model, int step) {
  torch::manual_seed(1000 + step);
  const std::int64_t rows = step % 3 == 2 ? 3 : 8;
  if (model == "mlp") return {{at::randn({rows, 12}), at::randint(5, {rows})}};
  const std::int64_t positions = model == "four heads" ? 8 : 6;
  at::Tensor targets = at::randint(17, {rows, positions});
  // Some tokens do not count, and of one row none.
  targets.masked_fill_(at::rand({rows, positions}) < 0.3, -100);
  targets[1].fill_(-100);
  return {{at::randint(17, {rows, positions}), targets}};
}

/// Rows of a batch, as even as they can be.
inline Batch RowsOf(const Batch& whole, const Launch& launch) {
  const auto begin = [&](int rank) { return whole.size() * rank / launch.size; };
  return whole.Rows(begin(launch.rank), begin(launch.rank + 1));
}

inline at::Tensor Flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.detach().flatten());
  return at::cat(flat);
}

/// How far it is from what is right, in parts of that.
inline double RelativeError(const at::Tensor& found, const at::Tensor& right) {
  return ((found - right).norm() / right.norm()).item<double>();
}

}  // namespace plimsoll::train
