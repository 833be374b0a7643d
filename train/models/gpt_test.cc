#include "train/models/gpt.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>

#include "train/models/model_for_tests.h"

namespace plimsoll::train::gpt_test {
namespace {

constexpr GptOptions kSmall = {
    .vocabulary = 40, .context = 12, .width = 32, .layers = 4, .heads = 4, .dropout = 0.2};

Batch RandomText(std::int64_t samples, const GptOptions& options = kSmall) {
  const at::Tensor text =
      torch::randint(options.vocabulary, {samples, options.context + 1}, at::kLong);
  return {{text.slice(1, 0, -1).contiguous(), text.slice(1, 1).contiguous()}};
}

TEST(Gpt, CheckpointsBitForBit) {
  Gpt model(kSmall);
  const Batch batch = RandomText(3);
  const Tensors plain = Gradients(model, batch);
  for (const char* policy : {"all", "sqrt", "every:3", "plan:0,2"}) {
    model.set_checkpoint_policy(CheckpointPolicy::Parse(policy));
    const Tensors checkpointed = Gradients(model, batch);
    ASSERT_EQ(plain.size(), checkpointed.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << policy << " " << i;
    }
  }
}

TEST(Gpt, ComputesWhatItsPythonTwinDoes) {
  // train/bench/train_twins.py gpt --vocabulary 40 --context 12 --width 32 --layers 4 --heads 4
  //   --batch 3 --losses 5
  constexpr std::array kLosses = {3.707265, 3.537439, 3.432690, 3.361977, 3.307747};
  torch::manual_seed(0);
  GptOptions options = kSmall;
  options.dropout = 0;
  Gpt model(options);
  const Batch batch = RandomText(3);
  ExpectLosses(model, batch, kLosses);
}

TEST(Gpt, IsCausal) {
  Gpt model(kSmall);
  model.eval();
  const at::Tensor tokens = RandomText(2).tensors[0];
  at::Tensor other = tokens.clone();
  other.select(1, 7).add_(1).remainder_(kSmall.vocabulary);
  const at::Tensor a = model.forward(tokens);
  const at::Tensor b = model.forward(other);
  EXPECT_TRUE(torch::allclose(a.slice(1, 0, 7), b.slice(1, 0, 7)));
  EXPECT_FALSE(torch::allclose(a.select(1, 7), b.select(1, 7)));
}

TEST(Gpt, IsTheSameWithoutWholeLogits) {
  Gpt model(kSmall);
  const Batch batch = RandomText(3);
  const Tensors plain = Gradients(model, batch);
  model.loss()->set_chunked(true);
  const Tensors chunked = Gradients(model, batch);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::allclose(plain[i], chunked[i], 1e-4, 1e-6)) << i;
  }
}

TEST(Gpt, TiesItsOutputToItsInput) {
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : Gpt(kSmall).parameters()) parameters += parameter.numel();
  constexpr std::int64_t kBlock = 12 * 32 * 32 + 13 * 32;
  EXPECT_EQ(parameters, (40 + 12) * 32 + 4 * kBlock + 2 * 32);
}

TEST(Gpt, WeighsTokens) {
  GptOptions options = kSmall;
  Batch batch = RandomText(3);
  EXPECT_EQ(Gpt(options).Weight(batch), 36);
  options.padded = true;
  batch.tensors[1].slice(1, 0, 4).fill_(-100);
  EXPECT_EQ(Gpt(options).Weight(batch), 24);
}

TEST(Gpt, RefusesWhatDoesNotFit) {
  Gpt model(kSmall);
  EXPECT_THROW(model.forward(torch::zeros({1, 13}, at::kLong)), c10::Error);
  GptOptions options = kSmall;
  options.heads = 5;
  EXPECT_THROW(Gpt{options}, c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::gpt_test
