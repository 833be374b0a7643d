#include "train/parallel/pipeline/pipeline_stage.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::pipeline_stage_test {
namespace {

at::Tensor LossOf(const ModelLayers& layers, const Batch& rows) {
  Tensors x;
  for (const ModelLayer& layer : layers) x = layer.forward(x, rows);
  return x.at(0);
}

TEST(PipelineStage, LayersAreTheModel) {
  for (const std::string name : {"mlp", "gpt"}) {
    const auto model = SmallModel(name, 1);
    const Batch batch = WholeBatch(name, 0);
    EXPECT_TRUE(LossOf(model->AsLayers(), batch).equal(model->Loss(batch))) << name;
  }
  namespace nn = torch::nn;
  nn::Sequential modules(nn::Linear(12, 7), nn::Tanh(), nn::Linear(7, 5));
  const auto loss = [](const at::Tensor& result, const Batch& rows) {
    return nn::functional::cross_entropy(result, rows.tensors[1]);
  };
  const Batch batch = WholeBatch("mlp", 0);
  const ModelLayers layers = LayersOfSequential(modules, loss);
  EXPECT_EQ(layers.size(), 4U);
  EXPECT_EQ(layers[2].modules[0].first, "2");
  EXPECT_TRUE(LossOf(layers, batch).equal(loss(modules->forward(batch.tensors[0]), batch)));
}

/// Four layers in four parts: the rank has the first and the third.
TEST(PipelineStage, KeepsItsOwnLayersAlone) {
  ModelLayers layers = SmallModel("gpt", 1)->AsLayers();
  const std::weak_ptr<torch::nn::Module> own = layers[2].modules[0].second;
  const std::weak_ptr<torch::nn::Module> other = layers[1].modules[0].second;
  PipelineStage stage(std::move(layers), {1, 1, 1, 1}, {.stages = 2, .chunks = 2}, 0, c10::kCPU,
                      {});
  EXPECT_FALSE(own.expired());
  EXPECT_TRUE(other.expired());
  const auto names = stage.model()->named_parameters().keys();
  EXPECT_EQ(names[0], "tokens.weight");
  EXPECT_EQ(names[1], "positions.weight");
  for (std::size_t i = 2; i < names.size(); ++i) {
    EXPECT_TRUE(names[i].starts_with("blocks.1.")) << names[i];
  }
  ASSERT_EQ(stage.tied().size(), 1U);
  EXPECT_EQ(stage.tied()[0].holders, (std::vector{0, 1}));
  EXPECT_TRUE(stage.tied()[0].parameter.is_same(stage.model()->named_parameters()[names[0]]));
}

TEST(PipelineStage, RefusesSplitsThatCannotBe) {
  const ModelLayers layers = SmallModel("mlp", 1)->AsLayers();
  const auto make = [&](const std::vector<int>& split) {
    PipelineStage(layers, split, {.stages = 2}, 0, c10::kCPU, {});
  };
  EXPECT_NO_THROW(make({1, 2}));
  EXPECT_THROW(make({1, 1}), c10::Error);
  EXPECT_THROW(make({3, 0}), c10::Error);
  EXPECT_THROW(make({1, 1, 1}), c10::Error);
  EXPECT_EQ(EvenSplit(7, 3), (std::vector{2, 2, 3}));
  EXPECT_THROW(EvenSplit(2, 3), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::pipeline_stage_test
