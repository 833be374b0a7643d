#include "train/checkpointing/checkpoint.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/budget/memory.h"
#include "train/checkpointing/autocast.h"
#include "train/checkpointing/checkpoint_policy.h"

namespace plimsoll::train::checkpoint_test {
namespace {

namespace nn = torch::nn;

nn::Sequential Layers(std::int64_t width, double dropout = 0) {
  return nn::Sequential(nn::Linear(width, 4 * width), nn::GELU(), nn::Dropout(dropout),
                        nn::Linear(4 * width, width));
}

/// Gradients of a net of blocks, with or without checkpoints.
struct Gradients {
  at::Tensor loss;
  Tensors gradients;
};

template <class Call>
Gradients Train(const std::vector<nn::Sequential>& blocks, const at::Tensor& x, Call call) {
  torch::manual_seed(7);
  at::Tensor y = x;
  for (const auto& block : blocks) y = call(block, y);
  const at::Tensor loss = y.pow(2).mean();
  loss.backward();
  Gradients run{loss.detach(), {}};
  for (const auto& block : blocks) {
    for (at::Tensor& parameter : block->parameters()) {
      run.gradients.push_back(parameter.grad().clone());
      parameter.mutable_grad() = at::Tensor();
    }
  }
  return run;
}

at::Tensor Plain(nn::Sequential block, const at::Tensor& x) { return block->forward(x); }
at::Tensor Checkpointed(nn::Sequential block, const at::Tensor& x) {
  return CheckpointOne([block](const at::Tensor& in) mutable { return block->forward(in); }, x);
}

void ExpectSame(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(torch::equal(a.loss, b.loss));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(torch::equal(a.gradients[i], b.gradients[i])) << i;
  }
}

TEST(Checkpoint, GivesTheSameBitForBit) {
  torch::manual_seed(1);
  const std::vector<nn::Sequential> blocks = {Layers(16, 0.3), Layers(16, 0.3), Layers(16, 0.3)};
  const at::Tensor x = torch::randn({8, 16});
  ExpectSame(Train(blocks, x, Plain), Train(blocks, x, Checkpointed));
  // Also where the input wants a gradient.
  const at::Tensor with_grad = x.clone().requires_grad_();
  ExpectSame(Train(blocks, x, Plain), Train(blocks, with_grad, Checkpointed));
  EXPECT_TRUE(with_grad.grad().defined());
}

TEST(Checkpoint, KeepsLess) {
  MemoryOf(c10::kCPU);
  std::vector<nn::Sequential> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(Layers(64));
  const at::Tensor x = torch::randn({256, 64});
  const auto peak = [&](auto call) {
    const Bytes before = MemoryOf(c10::kCPU).figures().allocated;
    at::Tensor y = x;
    for (const auto& block : blocks) y = call(block, y);
    return MemoryOf(c10::kCPU).figures().allocated - before;
  };
  EXPECT_LT(peak(Checkpointed) * 4, peak(Plain));
}

TEST(Checkpoint, RestoresAutocast) {
  const std::vector<nn::Sequential> blocks = {Layers(16), Layers(16)};
  const at::Tensor x = torch::randn({8, 16});
  const auto under_autocast = [](auto call) {
    return [call](const nn::Sequential& block, const at::Tensor& in) {
      const AutocastScope autocast(at::kCPU, at::kBFloat16);
      return call(block, in).to(at::kFloat);
    };
  };
  ExpectSame(Train(blocks, x, under_autocast(Plain)),
             Train(blocks, x, under_autocast(Checkpointed)));
}

TEST(Checkpoint, Nests) {
  torch::manual_seed(3);
  const std::vector<nn::Sequential> blocks = {Layers(16, 0.2), Layers(16, 0.2), Layers(16, 0.2),
                                              Layers(16, 0.2)};
  const at::Tensor x = torch::randn({8, 16});
  const Gradients plain = Train(blocks, x, Plain);
  torch::manual_seed(7);
  const auto all = [&](const at::Tensor& in) {
    at::Tensor y = in;
    for (const auto& block : blocks) y = Checkpointed(block, y);
    return y;
  };
  const at::Tensor loss = CheckpointOne(all, x).pow(2).mean();
  loss.backward();
  EXPECT_TRUE(torch::equal(loss, plain.loss));
  std::size_t i = 0;
  for (const auto& block : blocks) {
    for (const at::Tensor& parameter : block->parameters()) {
      EXPECT_TRUE(torch::equal(parameter.grad(), plain.gradients[i++]));
    }
  }
}

TEST(Checkpoint, HasSeveralOutputsAndInputsWithoutGradient) {
  const at::Tensor a = torch::randn({4, 4}).requires_grad_();
  const at::Tensor mask = torch::rand({4, 4}).gt(0.5);
  const auto function = [](const Tensors& in) {
    return Tensors{torch::where(in[1], in[0].exp(), in[0].sin()), in[0].pow(3)};
  };
  const auto gradient = [&](const Tensors& out) {
    return torch::autograd::grad({out[0].sum() + out[1].cos().sum()}, {a})[0];
  };
  EXPECT_TRUE(
      torch::equal(gradient(function({a, mask})), gradient(Checkpoint(function, {a, mask}))));
}

TEST(Checkpoint, MayGoBackTwice) {
  const at::Tensor a = torch::randn({4}).requires_grad_();
  const at::Tensor y = CheckpointOne([](const at::Tensor& x) { return x.exp().sin(); }, a).sum();
  const auto first = torch::autograd::grad({y}, {a}, {}, true)[0];
  const auto second = torch::autograd::grad({y}, {a})[0];
  EXPECT_TRUE(torch::equal(first, second));
}

TEST(Checkpoint, SaysWhenTheFunctionDoesSomethingElse) {
  int calls = 0;
  const at::Tensor a = torch::randn({4, 2}).requires_grad_();
  const at::Tensor y = CheckpointOne(
      [&calls](const at::Tensor& x) {
        return ++calls == 1 ? x.exp() : x.t().contiguous().exp().t();
      },
      a);
  try {
    y.sum().backward();
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("did something else when it was recomputed"),
              std::string::npos);
    EXPECT_NE(std::string(error.what()).find("[4, 2]"), std::string::npos) << error.what();
  }
}

/// Two chains, and a block beside them.
struct TwoChains : nn::Module, Checkpointable {
  TwoChains() {
    for (int i = 0; i < 5; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(8, 8)));
    }
  }
  int checkpoint_blocks() const override { return 6; }
  std::vector<Block> Blocks(std::size_t begin, std::size_t end) {
    std::vector<Block> blocks;
    for (std::size_t i = begin; i < end; ++i) {
      blocks.push_back(
          [layer = layers[i]](const at::Tensor& x) mutable { return layer(x).tanh(); });
    }
    return blocks;
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor middle = RunChain(0, Blocks(0, 2), x).sin();
    const at::Tensor end = RunChain(2, Blocks(2, 5), middle);
    return RunBlock(
        5, [](const at::Tensor& y) { return y.exp(); }, end);
  }
  at::Tensor OneAfterTheOther(const at::Tensor& x) {
    return RunChain(Blocks(2, 5), RunChain(Blocks(0, 2), x));
  }
  at::Tensor TooMany(const at::Tensor& x) { return RunChain(4, Blocks(0, 3), x); }

  std::vector<nn::Linear> layers;
};

/// The numbers of blocks as they are run; those after the block before in brackets.
struct BlockNumbers : BlockWatcher {
  void Enter(const Checkpointable&, CheckpointPolicy::Range blocks, bool in_chain) override {
    text += in_chain ? c10::str("(", blocks.begin, ")") : c10::str(blocks.begin);
  }
  void Leave(const Checkpointable&, CheckpointPolicy::Range, const at::Tensor&) override {}
  std::string text;
};

TEST(Checkpoint, NumbersTheBlocksOfSeveralChainsThrough) {
  TwoChains model;
  const at::Tensor x = torch::randn({4, 8});
  const auto gradients = [&](const char* policy) {
    model.zero_grad();
    model.set_checkpoint_policy(CheckpointPolicy::Parse(policy));
    model.forward(x).sum().backward();
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : model.parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto numbers = [&](const char* policy) {
    BlockNumbers seen;
    const WatchBlocks watch(seen);
    const auto all = gradients(policy);
    return seen.text;
  };
  EXPECT_EQ(numbers("none"), "0(1)2(3)(4)5");
  EXPECT_EQ(numbers("plan:3-4"), "0(1)2(3)5");
  // No checkpoint goes from one chain to the next.
  EXPECT_EQ(numbers("plan:1-3"), "0(1)2(4)5");
  const auto plain = gradients("none");
  for (const char* policy : {"all", "plan:1-3", "plan:2,5"}) {
    const auto same = gradients(policy);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], same[i]));
  }
}

TEST(Checkpoint, RefusesChainsThatItCannotNumber) {
  TwoChains model;
  const auto refusal = [&](at::Tensor (TwoChains::*forward)(const at::Tensor&)) -> std::string {
    try {
      (model.*forward)(torch::randn({4, 8}));
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return {};
  };
  EXPECT_EQ(refusal(&TwoChains::OneAfterTheOther),
            "RunChain is given 2 blocks, and checkpoint_blocks() says that there are 6; a chain of "
            "some of them is RunChain(first, blocks, x), with the number of its first block");
  EXPECT_EQ(refusal(&TwoChains::TooMany),
            "blocks 4 to 6 are run, and checkpoint_blocks() says that there are 6");
}

TEST(Checkpoint, SavesNothingWithoutGradients) {
  const torch::NoGradGuard no_grad;
  const at::Tensor a = torch::randn({4});
  EXPECT_TRUE(torch::equal(CheckpointOne([](const at::Tensor& x) { return x.exp(); }, a), a.exp()));
}

}  // namespace
}  // namespace plimsoll::train::checkpoint_test
