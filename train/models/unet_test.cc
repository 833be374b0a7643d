#include "train/models/unet.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>

#include "train/budget/memory.h"
#include "train/models/model_for_tests.h"

namespace plimsoll::train::unet_test {
namespace {

constexpr UNetOptions kSmall = {.classes = 3, .width = 8};

Batch RandomImages(std::int64_t samples, std::int64_t side = 32) {
  const at::Tensor images = torch::rand({samples, 3, side, side});
  return {{images, torch::randint(3, {samples, side, side}, at::kLong)}};
}

TEST(UNet, CheckpointsBitForBit) {
  const Batch batch = RandomImages(2);
  for (const auto normalization :
       {Normalization::kGroup, Normalization::kBatch, Normalization::kNone}) {
    UNetOptions options = kSmall;
    options.normalization = normalization;
    UNet model(options);
    const Tensors plain = Gradients(model, batch);
    for (const char* policy : {"all", "plan:0,1,7,8"}) {
      model.set_checkpoint_policy(CheckpointPolicy::Parse(policy));
      const Tensors checkpointed = Gradients(model, batch);
      ASSERT_EQ(plain.size(), checkpointed.size());
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << policy << " " << i;
      }
    }
  }
}

TEST(UNet, KeepsLessWhenCheckpointed) {
  MemoryOf(c10::kCPU);
  UNet model(kSmall);
  const Batch batch = RandomImages(1, 64);
  const auto kept = [&] {
    const Bytes before = MemoryOf(c10::kCPU).figures().allocated;
    const at::Tensor loss = model.Loss(batch);
    return MemoryOf(c10::kCPU).figures().allocated - before;
  };
  const Bytes plain = kept();
  model.set_checkpoint_policy(CheckpointPolicy::All());
  EXPECT_LT(kept() * 2, plain);
}

TEST(UNet, ComputesWhatItsPythonTwinDoes) {
  // train/bench/train_twins.py unet --width 8 --image 32 --batch 2 --classes 3 --losses 5
  constexpr std::array kLosses = {1.167643, 1.144114, 1.125507, 1.108655, 1.094092};
  torch::manual_seed(0);
  UNet model(kSmall);
  const Batch batch = RandomImages(2);
  ExpectLosses(model, batch, kLosses);
}

TEST(UNet, IsSmallerWithSeparableConvolutions) {
  UNetOptions options = kSmall;
  options.separable = true;
  UNet model(options);
  const auto parameters = [](const UNet& of) {
    std::int64_t n = 0;
    for (const at::Tensor& parameter : of.parameters()) n += parameter.numel();
    return n;
  };
  EXPECT_LT(parameters(model) * 3, parameters(UNet(kSmall)));
  EXPECT_EQ(model.forward(RandomImages(2).tensors[0]).sizes(),
            (std::vector<std::int64_t>{2, 3, 32, 32}));
}

TEST(UNet, SaysWhichSizesItTakes) {
  UNet model(kSmall);
  EXPECT_THROW(model.forward(torch::zeros({1, 3, 32, 40})), c10::Error);
  EXPECT_EQ(model.checkpoint_blocks(), 9);
}

}  // namespace
}  // namespace plimsoll::train::unet_test
