// Blocks within blocks: checkpointed where a block alone is too large.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/trainer/trainer.h"

namespace plimsoll::train::nested_blocks_test {
namespace {

namespace nn = torch::nn;

/// One large block: what it keeps is most of what the model keeps.
class Large : public nn::Module, public Checkpointable {
 public:
  Large() {
    for (int i = 0; i < kParts; ++i) {
      parts_.push_back(register_module("part" + std::to_string(i), nn::Linear(32, 32)));
    }
  }
  int checkpoint_blocks() const override { return kParts; }
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < kParts; ++i) {
      const auto part = [layer = parts_[i]](const at::Tensor& y) mutable {
        // Five results of which all but the last are kept.
        return (layer(y).tanh().sigmoid().exp() * 0.3).sigmoid();
      };
      x = RunBlock(i, part, x);
    }
    return x;
  }

 private:
  static constexpr int kParts = 6;
  std::vector<nn::Linear> parts_;
};

class Model : public nn::Module, public Checkpointable {
 public:
  Model() {
    for (int i = 0; i < 2; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<Large>()));
    }
  }
  int checkpoint_blocks() const override { return static_cast<int>(blocks_.size()); }
  at::Tensor Loss(const Batch& batch) {
    std::vector<Block> chain;
    for (const auto& block : blocks_) {
      chain.push_back([block](const at::Tensor& x) { return block->forward(x); });
    }
    return RunChain(chain, batch.tensors[0]).square().mean();
  }

 private:
  std::vector<std::shared_ptr<Large>> blocks_;
};

struct Training {
  explicit Training(TrainerOptions options = {}) {
    torch::manual_seed(3);
    model = std::make_shared<Model>();
    optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
    // One piece, on the device: what is checkpointed is the only lever.
    options.reduction = Reduction::kWholeBatch;
    options.offload = false;
    trainer = std::make_unique<Trainer>(
        model, optimizer, [this](const Batch& rows) { return model->Loss(rows); }, options);
  }
  std::shared_ptr<Model> model;
  std::shared_ptr<torch::optim::SGD> optimizer;
  std::unique_ptr<Trainer> trainer;
};

Batch Rows() {
  auto generator = at::detail::createCPUGenerator(5);
  return {{torch::randn({4096, 32}, generator, at::kFloat)}};
}

TEST(NestedBlocks, TrainWhereABlockAloneIsTooLarge) {
  const Batch batch = Rows();
  const Bytes outermost =
      Training({.checkpoint = CheckpointPolicy::Parse("plan:0,1")}).trainer->LeastBudget(batch);
  const Bytes least = Training().trainer->LeastBudget(batch);
  EXPECT_LT(least, outermost - kMiB);

  Training plain;
  Training tight({.budget = least + 64 * kKiB});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(tight.trainer->Step(batch).loss, plain.trainer->Step(batch).loss);
  }
  EXPECT_LE(tight.trainer->budget().figures().peak_reserved, least + 64 * kKiB);
}

TEST(NestedBlocks, AreLeftWhereTheOutermostAreEnough) {
  const Batch batch = Rows();
  const Bytes outermost =
      Training({.checkpoint = CheckpointPolicy::Parse("plan:0,1")}).trainer->LeastBudget(batch);
  Training some({.budget = outermost * 115 / 100});
  some.trainer->Step(batch);
  // Blocks 2 and on are those within the first two.
  EXPECT_LE(some.trainer->levers().checkpoint.last(), 1) << some.trainer->levers().ToString();
}

}  // namespace
}  // namespace plimsoll::train::nested_blocks_test
