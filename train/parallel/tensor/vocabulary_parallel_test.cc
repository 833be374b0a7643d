#include "train/parallel/tensor/vocabulary_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::vocabulary_parallel_test {
namespace {

using Options = LinearCrossEntropyOptions;
constexpr std::int64_t kClasses = 14;

struct Case {
  std::string name;
  Options options;
  /// Of the logits.
  double scale = 1;
};

std::vector<Case> Cases() {
  torch::manual_seed(2);
  const at::Tensor weights = at::rand({kClasses});
  return {{"plain", {}},
          {"sum, in chunks", {.chunk = 3, .reduction = Options::Reduction::kSum}},
          {"chunks of its own choice", {.chunk = 0}, 3},
          {"large logits", {}, 1e4},
          {"smoothed", {.chunk = 4, .label_smoothing = 0.2}},
          {"weighted", {.label_smoothing = 0.1, .class_weights = weights}},
          {"z", {.z_loss = 0.1}, 4},
          {"all",
           {.chunk = 5,
            .label_smoothing = 0.1,
            .class_weights = weights,
            .z_loss = 0.1,
            .soft_cap = 2}}};
}

struct Result {
  at::Tensor loss;
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor bias;
};

Result Gradients(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                 const at::Tensor& targets, const Options& options) {
  const std::vector<at::Tensor> leaves{hidden.clone().requires_grad_(),
                                       weight.clone().requires_grad_(),
                                       bias.clone().requires_grad_()};
  // Used for something else too.
  const at::Tensor loss = LinearCrossEntropy(leaves[0] * 1, leaves[1], leaves[2], targets, options);
  loss.backward();
  return {loss.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

/// The largest relative error of the loss and of the gradients.
double ErrorOf(const Case& one, Ranks& ranks) {
  torch::manual_seed(1);
  const at::Tensor hidden = at::randn({2, 6, 5});
  const at::Tensor weight = at::randn({kClasses, 5}) * one.scale;
  const at::Tensor bias = at::randn({kClasses});
  at::Tensor targets = at::randint(kClasses, {2, 6});
  targets[1].slice(0, 2, 4).fill_(-100);
  const Result right = Gradients(hidden, weight, bias, targets, one.options);
  const Part part = PartOf(kClasses, ranks);
  Options options = one.options;
  options.split = VocabularyOver(ranks, kClasses);
  const auto own = [&](const at::Tensor& whole) { return whole.narrow(0, part.begin, part.size); };
  const Result found = Gradients(hidden, own(weight), own(bias), targets, options);
  return std::max({RelativeError(found.loss, right.loss), RelativeError(found.hidden, right.hidden),
                   RelativeError(found.weight, own(right.weight)),
                   RelativeError(found.bias, own(right.bias))});
}

double LookUpError(Ranks& ranks) {
  torch::manual_seed(1);
  const at::Tensor table = at::randn({kClasses, 3}).requires_grad_();
  const at::Tensor numbers = at::randint(kClasses, {2, 8});
  const at::Tensor weights = at::randn({2, 8, 3});
  (at::embedding(table, numbers) * weights).sum().backward();
  const Part part = PartOf(kClasses, ranks);
  const at::Tensor own = table.detach().narrow(0, part.begin, part.size).clone().requires_grad_();
  const at::Tensor rows = LookUp(numbers, own, kClasses, Outside::kWhole, ranks);
  (rows * weights).sum().backward();
  return std::max(RelativeError(rows.detach(), at::embedding(table, numbers).detach()),
                  RelativeError(own.grad(), table.grad().narrow(0, part.begin, part.size)));
}

const RankTaskNamed kVocabulary("vocabulary", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Case& one : Cases()) findings[one.name] = at::tensor(ErrorOf(one, ranks));
  findings["look up"] = at::tensor(LookUpError(ranks));
  return findings;
});

TEST(TensorVocabulary, LossAndGradientsAreThoseOfOneRank) {
  for (const RankOutcome& outcome : RunRanks({.task = "vocabulary", .size = 3})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    for (const auto& [name, error] : outcome.findings) {
      EXPECT_LT(error.item<double>(), 1e-6) << name;
    }
  }
}

/// A number that is in no table is an error, as on one rank, and not a row of zeros.
const RankTaskNamed kNoToken("no token", [](const Launch& launch, const auto&) {
  Ranks ranks(launch, {.time_limit = kFaultLimit});
  const at::Tensor own = at::randn({PartOf(kClasses, ranks).size, 3});
  LookUp(at::full({1, 2}, kClasses), own, kClasses, Outside::kWhole, ranks);
  return Findings{};
});

TEST(TensorVocabulary, ATokenBeyondItIsAnError) {
  const auto outcomes = RunRanks({.task = "no token", .size = 2});
  EXPECT_NE(outcomes[1].error.find("index out of range"), std::string::npos) << outcomes[1].error;
  EXPECT_NE(outcomes[0].error.find("rank 1 has left"), std::string::npos) << outcomes[0].error;
}

}  // namespace
}  // namespace plimsoll::train::vocabulary_parallel_test
