#include "train/gradients/micro_batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/gradients/recovery.h"

namespace plimsoll::train::micro_batch_test {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr std::int64_t kClasses = 5;

struct Job {
  nn::Sequential model{nn::Linear(12, 32), nn::Tanh(), nn::Linear(32, kClasses)};
  Batch batch{{torch::randn({11, 12}), torch::randint(kClasses, {11}, at::kLong)}};

  std::vector<at::Tensor> Gradients(const LossFunction& loss, const Pieces& pieces,
                                    at::Tensor* value) {
    *value = AccumulateGradients(loss, batch, pieces);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : model->parameters())
      gradients.push_back(parameter.grad().clone());
    ClearGradients(*model);
    return gradients;
  }

  void ExpectPiecesEqualTheWhole(const LossFunction& loss, Pieces pieces) {
    at::Tensor whole_loss;
    Pieces whole = pieces;
    whole.rows = batch.size();
    const auto expected = Gradients(loss, whole, &whole_loss);
    for (const std::int64_t rows : {1, 2, 3, 4, 10}) {
      pieces.rows = rows;
      at::Tensor value;
      const auto got = Gradients(loss, pieces, &value);
      EXPECT_TRUE(torch::allclose(value, whole_loss, 1e-6)) << rows;
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-5, 1e-7)) << rows << " " << i;
      }
    }
  }
};

TEST(MicroBatch, EqualsTheWholeForMeans) {
  Job job;
  job.ExpectPiecesEqualTheWhole(
      [&](const Batch& rows) {
        return F::cross_entropy(job.model->forward(rows.tensors[0]), rows.tensors[1]);
      },
      {});
}

TEST(MicroBatch, EqualsTheWholeForSums) {
  Job job;
  const auto options = F::CrossEntropyFuncOptions().reduction(torch::kSum);
  job.ExpectPiecesEqualTheWhole(
      [&](const Batch& rows) {
        return F::cross_entropy(job.model->forward(rows.tensors[0]), rows.tensors[1], options);
      },
      {.reduction = Reduction::kSum});
}

TEST(MicroBatch, CountsWhatIsNotIgnored) {
  Job job;
  // All of the third row's kind is ignored, so that a piece of one row may have nothing in it.
  job.batch.tensors[1].slice(0, 2, 6).fill_(-100);
  job.ExpectPiecesEqualTheWhole(
      [&](const Batch& rows) {
        return F::cross_entropy(job.model->forward(rows.tensors[0]), rows.tensors[1]);
      },
      {.weight = [](const Batch& rows) { return rows.tensors[1].ne(-100).sum().item<double>(); }});
}

TEST(MicroBatch, KnowsBatchNormalization) {
  nn::Sequential model(nn::Linear(2, 2), nn::BatchNorm1d(2));
  EXPECT_TRUE(MixesSamples(*model));
  model->eval();
  EXPECT_FALSE(MixesSamples(*model));
  EXPECT_FALSE(
      MixesSamples(*nn::Sequential(nn::Linear(2, 2), nn::LayerNorm(nn::LayerNormOptions({2})))));
}

TEST(MicroBatch, RefusesNothingToLearnFrom) {
  Job job;
  const auto loss = [&](const Batch& rows) { return job.model->forward(rows.tensors[0]).sum(); };
  EXPECT_THROW(AccumulateGradients(loss, {}, {}), c10::Error);
  EXPECT_THROW(AccumulateGradients(loss, job.batch, {.weight = [](const Batch&) { return 0.0; }}),
               c10::Error);
}

TEST(Recovery, RestoresBuffersGradientsAndRandomNumbers) {
  nn::Sequential model(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5));
  const at::Tensor x = torch::randn({8, 4});
  StepUndo undo(*model, c10::kCPU);
  const auto step = [&] {
    const at::Tensor y = model->forward(x);
    y.sum().backward();
    return y.detach();
  };
  const at::Tensor first = step();
  undo.Undo();
  EXPECT_FALSE(model->parameters()[0].grad().defined());
  EXPECT_EQ(model->buffers()[0].abs().sum().item<double>(), 0);
  EXPECT_TRUE(torch::equal(step(), first));
}

TEST(Recovery, KnowsTheWordsOfLibraries) {
  EXPECT_TRUE(IsOutOfMemory(std::bad_alloc()));
  EXPECT_TRUE(
      IsOutOfMemory(std::runtime_error("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")));
  EXPECT_FALSE(IsOutOfMemory(std::runtime_error("shape mismatch")));
}

}  // namespace
}  // namespace plimsoll::train::micro_batch_test
