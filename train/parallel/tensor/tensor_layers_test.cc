// The parts of tensor parallel by themselves: layers of one's own, dropout, what is refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/checkpointing/autocast.h"
#include "train/checkpointing/random_state.h"
#include "train/light/lora.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/tensor/tensor_parallel.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::tensor_layers_test {
namespace {

/// Layers whose sizes no number of ranks divides.
class OwnModel : public torch::nn::Module {
 public:
  OwnModel()
      : up(register_module("up", LightLinear(6, 11))),
        down(register_module("down", LightLinear(11, 6))),
        last(register_module("last", LightLinear(torch::nn::LinearOptions(6, 7).bias(false)))) {}

  at::Tensor Loss(const at::Tensor& x) { return last(x + down(at::gelu(up(x)))).square().mean(); }

  LightLinear up;
  LightLinear down;
  LightLinear last;
};

const RankTaskNamed kOwnLayers("own layers", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  torch::manual_seed(1);
  OwnModel whole;
  const at::Tensor x = at::randn({5, 6});
  const at::Tensor right = whole.Loss(x);
  right.backward();
  torch::manual_seed(launch.rank + 1);
  OwnModel model;
  TensorParallel tensor(model, ranks);
  tensor.SplitColumns(*model.up);
  tensor.SplitRows(*model.down);
  tensor.SplitColumns(*model.last, {.gather = true});
  const at::Tensor found = model.Loss(x);
  found.backward();
  Findings findings{{"loss", at::tensor(RelativeError(found.detach(), right.detach()))}};
  const at::NoGradGuard no_grad;
  const auto parameters = model.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = tensor.WholeOf(parameters[i], parameters[i].grad());
    findings["gradient " + std::to_string(i)] =
        at::tensor(RelativeError(gradient, whole.parameters()[i].grad()));
  }
  {
    const TensorParallel::WholeModel gathered(tensor);
    findings["gathered"] =
        at::tensor(RelativeError(Flat(model.parameters()), Flat(whole.parameters())));
    for (const at::Tensor& parameter : model.parameters()) parameter.mul_(2);
  }
  for (const at::Tensor& parameter : whole.parameters()) parameter.mul_(2);
  findings["loaded"] = at::tensor(RelativeError(model.Loss(x), whole.Loss(x)));
  return findings;
});

TEST(TensorLayers, OfOnesOwnGiveTheGradientsOfOneRank) {
  for (const RankOutcome& outcome : RunRanks({.task = "own layers", .size = 4})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    EXPECT_EQ(outcome.findings.size(), 8U);
    for (const auto& [name, error] : outcome.findings) {
      EXPECT_LT(error.item<double>(), 1e-6) << name;
    }
  }
}

TEST(TensorLayers, PartsOfRandomNumbers) {
  const auto draw = [](std::optional<int> part) {
    torch::manual_seed(1);
    std::vector<at::Tensor> drawn;
    for (int i = 0; i < 2; ++i) {
      const RandomPartScope scope(at::kCPU, part);
      drawn.push_back(at::rand({4}));
    }
    drawn.push_back(at::rand({4}));
    return drawn;
  };
  const auto first = draw(0);
  const auto second = draw(1);
  EXPECT_FALSE(first[0].equal(second[0])) << "each part has its own";
  EXPECT_FALSE(first[0].equal(first[1])) << "each scope has its own";
  EXPECT_TRUE(first[2].equal(second[2])) << "outside all have the same";
  EXPECT_TRUE(first[0].equal(draw(0)[0])) << "computed again they are the same";
  torch::manual_seed(1);
  EXPECT_TRUE(draw(std::nullopt)[0].equal((torch::manual_seed(1), at::rand({4}))))
      << "without a part nothing changes";
}

std::shared_ptr<Gpt> WithDropout(const std::string& checkpoint) {
  auto model = std::make_shared<Gpt>(GptOptions{.vocabulary = 17,
                                                .context = 8,
                                                .width = 16,
                                                .layers = 2,
                                                .heads = 4,
                                                .dropout = 0.3,
                                                .padded = true});
  model->set_checkpoint_policy(CheckpointPolicy::Parse(checkpoint));
  return model;
}

/// How far the logits are from those of the whole model.
at::Tensor LogitsError(Gpt& model, TensorParallel& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(16).view({2, 8});
  model.eval();
  const at::Tensor found = model.forward(tokens);
  const TensorParallel::WholeModel whole(tensor);
  const at::Tensor right = model.forward(tokens);
  model.train();
  return at::tensor(RelativeError(found, right));
}

/// The same of the loss under autocast, after a backward through it.
at::Tensor Bf16Error(Gpt& model, TensorParallel& tensor) {
  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  const at::Tensor tokens = at::arange(16).view({2, 8});
  model.eval();
  const at::Tensor found = model.Loss(tokens, tokens);
  found.backward();
  const TensorParallel::WholeModel whole(tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor right = model.Loss(tokens, tokens);
  model.train();
  return at::tensor(RelativeError(found.detach(), right));
}

/// What comes of it does not depend on checkpoints, and what is the same on all ranks stays so.
const RankTaskNamed kDropout("tensor dropout", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Outside outside : {Outside::kWhole, Outside::kSequence}) {
    for (const std::string checkpoint : {"none", "all"}) {
      // Ranks begin with different numbers, and go on with those of rank 0.
      torch::manual_seed(launch.rank + 1);
      const auto model = WithDropout(checkpoint);
      TensorParallel tensor(*model, ranks, {.outside = outside});
      const at::Tensor tokens = at::arange(16).view({2, 8});
      const at::Tensor loss = model->Loss(tokens, tokens);
      loss.backward();
      std::vector<at::Tensor> gradients{loss};
      for (const at::Tensor& parameter : model->parameters()) {
        gradients.push_back(tensor.WholeOf(parameter, parameter.grad()));
      }
      const bool whole = outside == Outside::kWhole;
      findings[whole ? "logits whole" : "logits sequence"] = LogitsError(*model, tensor);
      findings[(whole ? "whole " : "sequence ") + checkpoint] = Flat(gradients);
      findings[whole ? "bf16 whole" : "bf16 sequence"] = Bf16Error(*model, tensor);
      // The last hidden states, if all have the same; else what was dropped of equal rows.
      const at::NoGradGuard no_grad;
      for (GptBlock& block : model->blocks()) {
        for (const at::Tensor& parameter : block->parameters()) parameter.zero_();
      }
      model->positions().weight.fill_(1);
      if (checkpoint == "all") {
        findings[whole ? "hidden whole" : "hidden sequence"] = model->Hidden(tokens * 0);
      }
    }
  }
  return findings;
});

TEST(TensorLayers, DropoutIsTheSameWhereRanksDoTheSame) {
  const auto outcomes = RunRanks({.task = "tensor dropout", .size = 2});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    const auto found = [&](const char* name) { return outcome.findings.at(name); };
    EXPECT_LT(RelativeError(found("whole none"), found("whole all")), 1e-6)
        << "checkpoints change nothing";
    EXPECT_LT(RelativeError(found("sequence none"), found("sequence all")), 1e-6);
    EXPECT_LT(found("logits whole").item<double>(), 1e-6);
    EXPECT_LT(found("logits sequence").item<double>(), 1e-6);
    EXPECT_LT(found("bf16 whole").item<double>(), 1e-2);
    EXPECT_LT(found("bf16 sequence").item<double>(), 1e-2);
  }
  const Findings& first = outcomes[0].findings;
  const Findings& second = outcomes[1].findings;
  for (const char* same : {"whole all", "sequence all", "hidden whole"}) {
    EXPECT_TRUE(first.at(same).equal(second.at(same))) << same;
  }
  EXPECT_FALSE(first.at("hidden sequence").equal(second.at("hidden sequence")))
      << "each drops its own of its positions";
}

std::string ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// What cannot be split is told on all ranks, before they wait for one another.
const RankTaskNamed kRefused("tensor refused", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  const auto note = [&](const std::string& error) { findings[error] = at::zeros({}); };
  const auto model = [](std::int64_t heads) {
    return Gpt({.vocabulary = 17, .context = 8, .width = 12, .layers = 1, .heads = heads});
  };
  note(ErrorOf([&] {
    Gpt three = model(3);
    TensorParallel tensor(three, ranks);
  }));
  Gpt gpt = model(2);
  TensorParallel tensor(gpt, ranks, {.outside = Outside::kSequence});
  const at::Tensor tokens = at::zeros({1, 7}, at::kLong);
  note(ErrorOf([&] { gpt.Loss(tokens, tokens); }));
  note(ErrorOf([&] { tensor.SplitRows(gpt.blocks()[0]->up()); }));
  note(ErrorOf([&] { gpt.blocks()[0]->up().AddAdapter({}); }));
  OwnModel own;
  AddLora(own);
  TensorParallel of_own(own, ranks);
  note(ErrorOf([&] { of_own.SplitColumns(*own.up); }));
  OwnModel other;
  TensorParallel of_other(other, ranks);
  note(ErrorOf([&] { of_other.SplitColumns(*other.up, {.groups = 3}); }));
  return findings;
});

TEST(TensorLayers, WhatCannotBeSplitIsRefused) {
  for (const RankOutcome& outcome : RunRanks({.task = "tensor refused", .size = 2})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    for (const char* said :
         {"a GPT's 3 heads cannot be split evenly among 2 ranks.",
          "a sequence of 7 positions cannot be split evenly among 2 ranks.",
          "a parameter of the model is split twice.",
          "an adapter cannot be added to a layer that is split among ranks",
          "a layer with an adapter, or in 8 bits, cannot be split among ranks.",
          "a layer with 11 outputs in 3 groups cannot be split among 2 ranks."}) {
      EXPECT_TRUE(outcome.findings.contains(said)) << said;
    }
  }
}

}  // namespace
}  // namespace plimsoll::train::tensor_layers_test
