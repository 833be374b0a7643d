#include "train/models/model_for_tests.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/models/classifier.h"
#include "train/models/mlp.h"

namespace plimsoll::train::model_test {
namespace {

void ExpectCheckpointsBitForBit(TrainModel& model, const Batch& batch) {
  const Tensors plain = Gradients(model, batch);
  for (const auto& policy : {CheckpointPolicy::All(), CheckpointPolicy::SquareRoot()}) {
    model.set_checkpoint_policy(policy);
    const Tensors checkpointed = Gradients(model, batch);
    ASSERT_EQ(plain.size(), checkpointed.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << policy.ToString() << " " << i;
    }
  }
}

std::int64_t Parameters(const TrainModel& model) {
  std::int64_t n = 0;
  for (const at::Tensor& parameter : model.parameters()) n += parameter.numel();
  return n;
}

Batch RandomImages(std::int64_t samples) {
  return {{torch::rand({samples, 3, 64, 64}), torch::randint(10, {samples}, at::kLong)}};
}

TEST(Classifier, CheckpointsBitForBit) {
  for (const auto normalization :
       {Normalization::kGroup, Normalization::kBatch, Normalization::kNone}) {
    Classifier model({.classes = 10, .width = 8, .normalization = normalization});
    EXPECT_EQ(model.checkpoint_blocks(), 8);
    ExpectCheckpointsBitForBit(model, RandomImages(2));
  }
}

TEST(Classifier, HasTheSizeOfResNet18) {
  // torchvision's resnet18.
  EXPECT_EQ(Parameters(Classifier({})), 11'689'512);
}

TEST(Classifier, LearnsWhatItIsShown) {
  torch::manual_seed(1);
  Classifier model({.classes = 10, .width = 8, .layers = 1});
  const Batch batch = RandomImages(4);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  const double before = model.Loss(batch).item<double>();
  for (int i = 0; i < 10; ++i) {
    optimizer.zero_grad();
    model.Loss(batch).backward();
    optimizer.step();
  }
  EXPECT_LT(model.Loss(batch).item<double>(), before / 2);
}

TEST(Mlp, IsTheGuides) {
  Mlp model({});
  EXPECT_EQ(Parameters(model), 1001 * 2000 + 2001 * 1000 + 1001 * 10);
  const Batch batch = {{torch::randn({4, 1000}), torch::randint(10, {4}, at::kLong)}};
  ExpectCheckpointsBitForBit(model, batch);
  EXPECT_EQ(model.Weight(batch), 4);
}

TEST(MakeModel, TakesSizes) {
  const ModelSizes sizes = {.width = 16,
                            .layers = 1,
                            .classes = 5,
                            .vocabulary = 20,
                            .context = 8,
                            .heads = 2,
                            .in_channels = 1,
                            .separable = true};
  for (const char* name : {"gpt", "unet", "classifier", "mlp"}) {
    EXPECT_LT(Parameters(*MakeModel(name, sizes)), 600'000) << name;
  }
  EXPECT_THROW(MakeModel("rnn"), c10::Error);
  EXPECT_THROW(MakeModel("gpt", {.width = -1}), c10::Error);
  EXPECT_EQ(ParseNormalization("batch"), Normalization::kBatch);
  EXPECT_THROW(ParseNormalization("layer"), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::model_test
