#include "train/checkpointing/offload.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/budget/cpu_allocator.h"
#include "train/budget/memory.h"
#include "train/checkpointing/checkpoint.h"
#include "train/common/nightly_for_tests.h"

namespace plimsoll::train::offload_test {
namespace {

namespace nn = torch::nn;

/// Everything moves, and nothing comes back before it is asked for.
constexpr OffloadOptions kAll = {.least = 1, .keep_last = 0, .in_flight = 0, .prefetch = 0};

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t width, std::int64_t heads, double dropout)
      : heads_(heads),
        norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        proj(register_module("proj", nn::Linear(width, width))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))),
        drop(register_module("drop", nn::Dropout(dropout))) {}

  at::Tensor Attend(const at::Tensor& x) {
    const auto head = [&](const at::Tensor& part) {
      return part.view({x.size(0), x.size(1), heads_, -1}).transpose(1, 2);
    };
    const auto parts = qkv(x).chunk(3, -1);
    const at::Tensor scores = head(parts[0]).matmul(head(parts[1]).transpose(-1, -2));
    const at::Tensor out = drop(scores.softmax(-1)).matmul(head(parts[2]));
    return proj(out.transpose(1, 2).reshape(x.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + Attend(norm1(x));
    return y + drop(down(torch::gelu(up(norm2(y)))));
  }

  std::int64_t heads_;
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, proj, up, down;
  nn::Dropout drop;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  explicit NetImpl(int count, double dropout = 0.2) {
    torch::manual_seed(5);
    for (int i = 0; i < count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(32, 4, dropout)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (Block& block : blocks) {
      x = checkpointed ? CheckpointOne([&](const at::Tensor& in) { return block(in); }, x)
                       : block(x);
    }
    return x;
  }
  std::vector<Block> blocks;
  bool checkpointed = false;
};
TORCH_MODULE(Net);

at::Tensor Input(std::int64_t batch = 4) {
  torch::manual_seed(6);
  return torch::randn({batch, 16, 32});
}

void ClearGradients(Net& net) {
  for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
}

/// The loss, then all gradients.
Tensors Step(Net& net, const at::Tensor& x, Offload* offload) {
  torch::manual_seed(7);
  at::Tensor loss;
  {
    const SavedTensorScope scope(offload == nullptr ? nullptr : offload->policy());
    loss = net(x).pow(2).mean();
  }
  loss.backward();
  Tensors result = {loss.detach()};
  for (const at::Tensor& parameter : net->parameters()) result.push_back(parameter.grad());
  ClearGradients(net);
  return result;
}

void ExpectSame(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

/// With everything that moves and comes back in other ways.
std::vector<OffloadOptions> Variants() {
  return {kAll,
          {},
          {.least = kKiB, .keep_last = 0, .in_flight = 0, .prefetch = 64 * kKiB},
          {.least = 1, .keep_last = 100 * kKiB, .in_flight = 50 * kKiB, .prefetch = 0},
          {.least = 1, .keep_last = 100 * kKiB, .in_flight = 0, .prefetch = kGiB},
          {.least = 1, .keep_last = 0, .in_flight = 0, .prefetch = 1, .host_limit = 200 * kKiB}};
}

TEST(Offload, GivesTheSameBitForBit) {
  Net net(3);
  const at::Tensor x = Input();
  for (const bool checkpointed : {false, true}) {
    net->checkpointed = checkpointed;
    const Tensors plain = Step(net, x, nullptr);
    for (const OffloadOptions& options : Variants()) {
      Offload offload(c10::kCPU, net->parameters(), options);
      for (int step = 0; step < 3; ++step) ExpectSame(Step(net, x, &offload), plain);
    }
  }
}

Bytes Allocated() { return MemoryOf(c10::kCPU).figures().allocated; }

TEST(Offload, LeavesLittleOnTheDevice) {
  Net net(8);
  const at::Tensor x = Input(16);
  Offload offload(c10::kCPU, net->parameters(), kAll);
  const auto after_forward = [&](const std::shared_ptr<SavedTensorPolicy>& policy) {
    const Bytes before = Allocated();
    const SavedTensorScope scope(policy);
    const at::Tensor y = net(x);
    return Allocated() - before;
  };
  const auto peak = [&](Offload* with) {
    MemoryOf(c10::kCPU).ResetPeaks();
    const Bytes before = Allocated();
    Step(net, x, with);
    return MemoryOf(c10::kCPU).figures().peak_allocated - before;
  };
  const Bytes plain = after_forward(nullptr);
  const Bytes offloaded = after_forward(offload.policy());
  RecordProperty("plain", std::to_string(plain));
  RecordProperty("offloaded", std::to_string(offloaded));
  EXPECT_LE(offloaded * 100, plain * 35) << offloaded << " of " << plain;
  const Bytes plain_peak = peak(nullptr);
  const Bytes offloaded_peak = peak(&offload);
  EXPECT_LE(offloaded_peak * 100, plain_peak * 35) << offloaded_peak << " of " << plain_peak;
}

TEST(Offload, MovesTheInputsOfCheckpoints) {
  Net net(8);
  net->checkpointed = true;
  const at::Tensor x = Input(16);
  Offload offload(c10::kCPU, net->parameters(), kAll);
  const Bytes before = Allocated();
  {
    const SavedTensorScope scope(offload.policy({x}));
    const at::Tensor y = net(x);
    // The result, and the states of the random generator.
    EXPECT_LT(Allocated() - before, y.nbytes() + 8 * 6 * kKiB);
    EXPECT_EQ(offload.stats().tensors_moved, 7);
    EXPECT_EQ(offload.stats().to_host, 7 * static_cast<Bytes>(x.nbytes()));
  }
  EXPECT_EQ(Allocated(), before);
}

TEST(Offload, ParametersAndTheirViewsStay) {
  Offload offload(c10::kCPU, {}, kAll);
  const auto policy = offload.policy();
  const at::Tensor leaf = torch::randn({8, 8}).requires_grad_();
  policy->Pack(leaf);
  policy->Pack(leaf.t());
  EXPECT_EQ(offload.stats().tensors_moved, 0);

  // Listed ones stay whatever autograd thinks of them.
  const at::Tensor listed = torch::randn({8, 8});
  Offload other(c10::kCPU, {listed}, kAll);
  other.policy()->Pack(listed.detach().t());
  other.policy({leaf.detach()})->Pack(leaf.detach());
  EXPECT_EQ(other.stats().tensors_moved, 0);
  EXPECT_EQ(other.stats().tensors_kept, 2);

  nn::Linear linear(16, 16);
  Offload model(c10::kCPU, linear->parameters(), kAll);
  const SavedTensorScope scope(model.policy());
  const at::Tensor y = linear(torch::randn({4, 16})).tanh();
  EXPECT_EQ(model.stats().to_host, 2 * 4 * 16 * 4);
}

TEST(Offload, SmallOnesStay) {
  Offload offload(c10::kCPU, {}, {.least = 256});
  const auto policy = offload.policy();
  policy->Pack(torch::randn({63}));
  // It looks large and is not.
  policy->Pack(torch::randn({1}).expand({1000}));
  EXPECT_EQ(offload.stats().tensors_moved, 0);
  policy->Pack(torch::randn({64}));
  EXPECT_EQ(offload.stats().tensors_moved, 1);
}

TEST(Offload, KeepsValuesTypesAndStrides) {
  const at::Tensor base = torch::randn({6, 8});
  const at::Tensor image = torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const std::vector<at::Tensor> cases = {base,
                                         base.t(),
                                         base.slice(1, 1, 8, 3),
                                         base[5],
                                         base.slice(0, 2, 4).t(),
                                         base.to(at::kBFloat16),
                                         base.gt(0),
                                         base.mul(100).to(at::kLong).slice(1, 3),
                                         torch::randn({1, 8}).expand({6, 8}),
                                         torch::randn({}),
                                         torch::randn({0, 3}),
                                         image,
                                         torch::randn({3}, at::kComplexFloat).conj(),
                                         torch::randn({8, 4}).to_sparse()};
  for (const OffloadOptions& options : Variants()) {
    Offload offload(c10::kCPU, {}, options);
    const auto policy = offload.policy();
    std::vector<std::unique_ptr<PackedTensor>> packed;
    for (const at::Tensor& tensor : cases) packed.push_back(policy->Pack(tensor));
    for (std::size_t i = cases.size(); i-- > 0;) {
      const at::Tensor back = packed[i]->Unpack();
      if (!cases[i].is_sparse()) {
        EXPECT_EQ(back.strides(), cases[i].strides()) << i;
        EXPECT_TRUE(torch::equal(back, cases[i])) << i;
      }
      EXPECT_EQ(back.scalar_type(), cases[i].scalar_type()) << i;
    }
  }
}

TEST(Offload, AStorageMovesOnce) {
  const auto bytes = static_cast<Bytes>(4 * 6 * 16);
  at::Tensor whole = torch::randn({6, 16});
  Offload offload(c10::kCPU, {}, kAll);
  const auto policy = offload.policy();
  std::vector<std::unique_ptr<PackedTensor>> packed;
  for (const at::Tensor& part : whole.chunk(2, 1)) packed.push_back(policy->Pack(part));
  packed.push_back(policy->Pack(whole));
  EXPECT_EQ(offload.stats().to_host, bytes);
  // Few rows of it: only they move.
  packed.push_back(policy->Pack(whole[2]));
  EXPECT_EQ(offload.stats().to_host, bytes + 16 * 4);

  const at::Tensor expected = whole.clone();
  whole = at::Tensor();
  const at::Tensor row = packed[3]->Unpack();
  EXPECT_TRUE(torch::equal(row, expected[2]));
  // One comes back, and is shared for as long as somebody has it.
  const at::Tensor a = packed[2]->Unpack();
  const at::Tensor b = packed[1]->Unpack();
  EXPECT_TRUE(a.is_alias_of(b));
  EXPECT_TRUE(torch::equal(b, expected.slice(1, 8)));
  EXPECT_EQ(offload.stats().to_device, bytes + 16 * 4);
}

TEST(Offload, ANewVersionIsAnotherTensor) {
  at::Tensor x = torch::ones({64});
  Offload offload(c10::kCPU, {}, kAll);
  const auto policy = offload.policy();
  const auto before = policy->Pack(x);
  x.add_(1);
  const auto after = policy->Pack(x);
  EXPECT_TRUE(torch::equal(after->Unpack(), torch::full({64}, 2.0)));
  // As without offload.
  EXPECT_THROW(before->Unpack(), c10::Error);
}

TEST(Offload, ChangesInPlaceAreErrorsAsUsual) {
  for (const Bytes least : {Bytes{1}, kMiB}) {
    Offload offload(c10::kCPU, {}, {.least = least, .keep_last = 0});
    const SavedTensorScope scope(offload.policy());
    const at::Tensor a = torch::randn({16}).requires_grad_();
    const at::Tensor y = a.exp();
    const at::Tensor z = y.sin();
    y.detach().add_(1);
    try {
      z.sum().backward();
      FAIL() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("modified by an inplace operation"),
                std::string::npos);
    }
  }
}

TEST(Offload, BringsBackAheadAndKeepsTheLast) {
  constexpr Bytes kOne = 4 * kKiB;
  Offload offload(c10::kCPU, {},
                  {.least = 1, .keep_last = kOne, .in_flight = 0, .prefetch = 2 * kOne});
  for (int step = 0; step < 2; ++step) {
    const OffloadStats before = offload.stats();
    const auto policy = offload.policy();
    const Bytes empty = Allocated();
    std::vector<std::unique_ptr<PackedTensor>> packed;
    for (int i = 0; i < 6; ++i) packed.push_back(policy->Pack(torch::full({kKiB}, i, at::kFloat)));
    EXPECT_EQ(Allocated() - empty, kOne);
    // The first time nobody knows which is the last.
    EXPECT_EQ(offload.stats().to_host - before.to_host, (step == 0 ? 6 : 5) * kOne);

    const auto brought = [&] { return (offload.stats().to_device - before.to_device) / kOne; };
    EXPECT_EQ(packed[5]->Unpack()[0].item<float>(), 5);
    EXPECT_EQ(brought(), 2);
    packed.pop_back();
    EXPECT_EQ(Allocated() - empty, 2 * kOne);
    EXPECT_EQ(packed[4]->Unpack()[0].item<float>(), 4);
    EXPECT_EQ(brought(), 3);
    packed.clear();
    EXPECT_EQ(Allocated(), empty);
  }
}

TEST(Offload, UsesItsBuffersAgain) {
  Net net(4);
  Offload offload(c10::kCPU, net->parameters(), kAll);
  const at::Tensor x = Input();
  Step(net, x, &offload);
  const Bytes host = offload.stats().host;
  EXPECT_EQ(host, offload.stats().to_host);
  for (int step = 0; step < 3; ++step) Step(net, x, &offload);
  EXPECT_EQ(offload.stats().host, host);
  EXPECT_EQ(offload.stats().to_host, 4 * host);
  // Three quarters of a batch fit into the same.
  Step(net, Input(3), &offload);
  EXPECT_EQ(offload.stats().host, host);
  offload.ReleaseHost();
  EXPECT_EQ(offload.stats().host, 0);
}

TEST(Offload, KeepsToItsLimitOfHostMemory) {
  Net net(4);
  OffloadOptions options = kAll;
  options.host_limit = 100 * kKiB;
  Offload offload(c10::kCPU, net->parameters(), options);
  for (const std::int64_t batch : {2, 4, 3}) {
    ExpectSame(Step(net, Input(batch), &offload), Step(net, Input(batch), nullptr));
    EXPECT_LE(offload.stats().host, 100 * kKiB);
  }
  EXPECT_GT(offload.stats().to_host, 0);
}

TEST(Offload, GoesBackTwice) {
  Offload offload(c10::kCPU, {}, kAll);
  const at::Tensor a = torch::randn({64}).requires_grad_();
  at::Tensor y;
  {
    const SavedTensorScope scope(offload.policy());
    y = a.exp().sin().pow(3).sum();
  }
  const auto first = torch::autograd::grad({y}, {a}, {}, true)[0];
  const auto second = torch::autograd::grad({y}, {a}, {}, true, true)[0];
  EXPECT_TRUE(torch::equal(first, second));
  // And from there on.
  const auto plain = a.exp().sin().pow(3).sum();
  const auto plain_first = torch::autograd::grad({plain}, {a}, {}, true, true)[0];
  EXPECT_TRUE(torch::equal(torch::autograd::grad({second.sum()}, {a})[0],
                           torch::autograd::grad({plain_first.sum()}, {a})[0]));
}

TEST(Offload, OutlivesItsOwner) {
  auto offload = std::make_unique<Offload>(c10::kCPU, std::vector<at::Tensor>(), kAll);
  const at::Tensor a = torch::randn({64}).requires_grad_();
  at::Tensor y;
  {
    const SavedTensorScope scope(offload->policy());
    y = a.exp().sin().sum();
  }
  offload.reset();
  y.backward();
  EXPECT_TRUE(torch::equal(a.grad(), (a.exp().cos() * a.exp()).detach()));
}

/// A backward that fails leaves nodes, and what they hold, in the queue of its thread; the next
/// backward throws them away.
void EmptyTheQueueOfBackward() { torch::zeros({1}).requires_grad_().sum().backward(); }

/// Fails every allocation of a step in turn; by day each third.
void FailEverywhere(bool checkpointed, const OffloadOptions& options) {
  Net net(2);
  net->checkpointed = checkpointed;
  const at::Tensor x = Input(2);
  CpuAllocator& allocator = CpuAllocator::Installed();
  const Tensors plain = Step(net, x, nullptr);
  Offload offload(c10::kCPU, net->parameters(), options);
  Step(net, x, &offload);
  const Bytes host = offload.stats().host;
  const Bytes before = Allocated();
  const std::int64_t start = allocator.requests();
  Step(net, x, &offload);
  const std::int64_t requests = allocator.requests() - start;
  ASSERT_GT(requests, 50);
  int failures = 0;
  int tries = 0;
  for (std::int64_t i = 0; i < requests; i += Nightly(1, 3)) {
    ++tries;
    allocator.FailAt(allocator.requests() + i);
    try {
      Step(net, x, &offload);
    } catch (const c10::OutOfMemoryError&) {
      ++failures;
      ClearGradients(net);
    }
    allocator.FailAt(-1);
    EmptyTheQueueOfBackward();
    ASSERT_EQ(Allocated(), before) << "after failure " << i;
    ExpectSame(Step(net, x, &offload), plain);
    ASSERT_EQ(Allocated(), before) << "after failure " << i;
  }
  EXPECT_EQ(offload.stats().host, host);
  // Only what is brought back early may fail unseen.
  if (options.prefetch == 0) {
    EXPECT_EQ(failures, tries);
  }
}

TEST(Offload, NothingIsLostWhenMemoryRunsOut) { FailEverywhere(false, kAll); }
TEST(Offload, NothingIsLostWhenMemoryRunsOutUnderCheckpoints) { FailEverywhere(true, kAll); }
TEST(Offload, NothingIsLostWhenMemoryRunsOutWhileBringingBackAhead) {
  FailEverywhere(false, {.least = 1, .keep_last = 0, .in_flight = 0, .prefetch = 64 * kKiB});
}

}  // namespace
}  // namespace plimsoll::train::offload_test
