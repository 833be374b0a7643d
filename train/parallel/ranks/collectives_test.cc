#include "train/parallel/ranks/collectives.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/checkpointing/autocast.h"
#include "train/checkpointing/checkpoint.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::collectives_test {
namespace {

/// Two linear layers, of which each rank has some of the hidden units, on inputs [3, positions, 6].
struct TwoLayers {
  at::Tensor up = torch::randn({7, 6}, at::requires_grad());
  at::Tensor down = torch::randn({6, 7}, at::requires_grad());

  at::Tensor Whole(const at::Tensor& x) const {
    return at::linear(at::gelu(at::linear(x, up)), down);
  }
  /// With this rank's part of the units: a part of the sum.
  at::Tensor Split(const at::Tensor& x, const Ranks& ranks) const {
    const Part part = PartOf(7, ranks);
    return at::linear(at::gelu(at::linear(x, up.narrow(0, part.begin, part.size))),
                      down.narrow(1, part.begin, part.size));
  }
};

enum class How { kCopied, kGathered, kSequence };

/// The mean square of the layers' result, the same on all ranks.
at::Tensor SplitLoss(const TwoLayers& layers, const at::Tensor& x, How how, Ranks& ranks) {
  if (how == How::kCopied) {
    return SumOverRanks(layers.Split(CopyToRanks(x, ranks), ranks), ranks).square().mean();
  }
  if (how == How::kGathered) {
    const Part part = PartOf(7, ranks);
    const at::Tensor units =
        at::gelu(at::linear(CopyToRanks(x, ranks), layers.up.narrow(0, part.begin, part.size)));
    const at::Tensor all = GatherFromRanks(units, -1, 7, Then::kSame, ranks);
    return at::linear(all, layers.down).square().mean();
  }
  const at::Tensor here = TakePart(x, 1, ranks);
  const at::Tensor all = GatherFromRanks(here, 1, x.size(1), Then::kWork, ranks);
  const at::Tensor result = SumToParts(layers.Split(all, ranks), 1, ranks);
  return SumOverRanks(result.square().sum(), ranks) / x.numel();
}

/// Of what is split, a rank's gradient is that of its part, and zero elsewhere.
at::Tensor Gradients(const at::Tensor& x, const TwoLayers& layers, bool down_is_split,
                     Ranks& ranks) {
  at::Tensor up = layers.up.grad().clone();
  at::Tensor down = layers.down.grad().clone();
  ranks.Sum(up);
  if (down_is_split) ranks.Sum(down);
  return Flat({x.grad(), up, down});
}

/// How far the loss and all gradients are from those of one rank.
at::Tensor ErrorOf(How how, std::int64_t positions, bool checkpointed, Ranks& ranks) {
  torch::manual_seed(1);
  const TwoLayers layers;
  // Not contiguous.
  const at::Tensor x = at::randn({positions, 3, 6}).transpose(0, 1).requires_grad_();
  const auto clear = [&] {
    for (const at::Tensor& one : {x, layers.up, layers.down}) one.mutable_grad() = at::Tensor();
  };
  Ranks alone;
  const at::Tensor right = layers.Whole(x).square().mean() + layers.Whole(3 * x).square().mean();
  right.backward();
  const at::Tensor right_gradients = Gradients(x, layers, true, alone);
  clear();
  const auto function = [&](const at::Tensor& given) {
    // Twice in one graph.
    return SplitLoss(layers, given, how, ranks) + SplitLoss(layers, 3 * given, how, ranks);
  };
  const at::Tensor found = checkpointed ? CheckpointOne(function, x) : function(x);
  found.backward();
  const at::Tensor gradients = Gradients(x, layers, how != How::kGathered, ranks);
  return at::tensor(std::max(RelativeError(found.detach(), right.detach()),
                             RelativeError(gradients, right_gradients)));
}

const RankTaskNamed kCollectives("collectives with gradients", [](const Launch& launch,
                                                                  const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const How how : {How::kCopied, How::kGathered, How::kSequence}) {
    for (const std::int64_t positions : {5, 8}) {
      for (const bool checkpointed : {false, true}) {
        if (!IsNightly() && checkpointed == (positions == 8)) continue;
        const std::string name = "way " + std::to_string(static_cast<int>(how)) + ", " +
                                 std::to_string(positions) + " positions" +
                                 (checkpointed ? ", checkpointed" : "");
        findings[name] = ErrorOf(how, positions, checkpointed, ranks);
        const AutocastScope autocast(at::kCPU, at::kBFloat16);
        findings[name + ", bf16"] = ErrorOf(how, positions, checkpointed, ranks);
      }
    }
  }
  return findings;
});

TEST(TensorCollectives, GradientsAreThoseOfOneRank) {
  for (const RankOutcome& outcome : RunRanks({.task = "collectives with gradients", .size = 4})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    for (const auto& [name, error] : outcome.findings) {
      const bool rounded = name.find("bf16") != std::string::npos;
      EXPECT_LT(error.item<double>(), rounded ? 2e-2 : 1e-6) << name;
    }
  }
}

TEST(TensorCollectives, PartsAreEven) {
  for (const std::int64_t whole : {0, 3, 8, 17}) {
    std::int64_t next = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Part part = PartOf(whole, rank, 4);
      EXPECT_EQ(part.begin, next);
      EXPECT_LE(part.size, (whole + 3) / 4);
      EXPECT_GE(part.size, whole / 4);
      next = part.end();
    }
    EXPECT_EQ(next, whole);
  }
}

}  // namespace
}  // namespace plimsoll::train::collectives_test
