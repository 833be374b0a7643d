#include "train/models/cross_entropy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/budget/cpu_allocator.h"
#include "train/checkpointing/autocast.h"

namespace plimsoll::train::cross_entropy_test {
namespace {

namespace F = torch::nn::functional;
using Options = LinearCrossEntropyOptions;
using Reduction = Options::Reduction;

struct Problem {
  at::Tensor hidden, weight, bias, targets;

  static Problem Make(std::int64_t rows, std::int64_t width, std::int64_t vocabulary,
                      at::ScalarType dtype = at::kFloat) {
    torch::manual_seed(5);
    Problem problem{torch::randn({rows, width}, dtype), torch::randn({vocabulary, width}, dtype),
                    torch::randn({vocabulary}, dtype), torch::randint(vocabulary, {rows})};
    for (at::Tensor* tensor : {&problem.hidden, &problem.weight, &problem.bias}) {
      tensor->requires_grad_();
    }
    return problem;
  }

  at::Tensor Plain(const Options& options) const {
    const auto plain = F::CrossEntropyFuncOptions().ignore_index(options.ignore_index);
    const at::Tensor logits =
        F::linear(hidden, weight, bias).to(at::promote_types(hidden.scalar_type(), at::kFloat));
    return options.reduction == Reduction::kMean
               ? F::cross_entropy(logits, targets, F::CrossEntropyFuncOptions(plain))
               : F::cross_entropy(logits, targets,
                                  F::CrossEntropyFuncOptions(plain).reduction(torch::kSum));
  }
  at::Tensor Chunked(const Options& options) const {
    return LinearCrossEntropy(hidden, weight, bias, targets, options);
  }

  /// The loss and all gradients; the loss goes on into something, so that its gradient is not 1.
  std::vector<at::Tensor> Derived(const at::Tensor& loss) const {
    std::vector<at::Tensor> all = torch::autograd::grad({loss * 3}, {hidden, weight, bias});
    all.push_back(loss.detach());
    return all;
  }
};

void ExpectRelative(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want,
                    double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = (got[i] - want[i]).norm().item<double>();
    EXPECT_LE(error, tolerance * want[i].norm().item<double>()) << i;
  }
}

TEST(LinearCrossEntropy, EqualsTheWholeOne) {
  Problem problem = Problem::Make(50, 16, 100);
  problem.targets[3] = -100;
  problem.targets[49] = -100;
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    for (const std::int64_t chunk : {0, 1, 7, 25, 50, 1000}) {
      SCOPED_TRACE(chunk);
      const Options options{.chunk = chunk, .reduction = reduction};
      ExpectRelative(problem.Derived(problem.Chunked(options)),
                     problem.Derived(problem.Plain(options)), 1e-6);
    }
  }
}

/// The same by torch's own operators on all logits at once.
at::Tensor ByFormula(const Problem& problem, const Options& options) {
  at::Tensor logits = F::linear(problem.hidden, problem.weight, problem.bias);
  if (options.soft_cap > 0) logits = torch::tanh(logits / options.soft_cap) * options.soft_cap;
  auto plain = F::CrossEntropyFuncOptions()
                   .ignore_index(options.ignore_index)
                   .label_smoothing(options.label_smoothing);
  if (options.class_weights) plain.weight(*options.class_weights);
  const bool mean = options.reduction == Reduction::kMean;
  if (!mean) plain.reduction(torch::kSum);
  const at::Tensor counts = problem.targets.ne(options.ignore_index);
  const at::Tensor z = logits.logsumexp(1).square().masked_select(counts);
  return F::cross_entropy(logits, problem.targets, plain) +
         options.z_loss * (mean ? z.mean() : z.sum());
}

TEST(LinearCrossEntropy, HasTheOptionsOfTorchAndMore) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Problem problem = Problem::Make(37, 12, 50, type);
    problem.targets[0] = -100;
    problem.targets[20] = -100;
    const at::Tensor weights = torch::rand({50}, type) + 0.1;
    const std::vector<Options> all = {
        {.label_smoothing = 0.1},
        {.label_smoothing = 1},
        {.class_weights = weights},
        {.z_loss = 0.01},
        {.soft_cap = 3},
        {.label_smoothing = 0.2, .class_weights = weights},
        {.class_weights = weights, .z_loss = 0.02},
        {.z_loss = 0.01, .soft_cap = 5},
        {.label_smoothing = 0.3, .class_weights = weights, .z_loss = 0.05, .soft_cap = 4}};
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
        for (const std::int64_t chunk : {0, 1, 10, 37}) {
          SCOPED_TRACE(testing::Message() << "options " << i << ", chunk " << chunk);
          Options options = all[i];
          options.reduction = reduction;
          options.chunk = chunk;
          ExpectRelative(problem.Derived(problem.Chunked(options)),
                         problem.Derived(ByFormula(problem, options)),
                         type == at::kDouble ? 1e-13 : 2e-5);
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, HasNoUseForIgnoredRowsWithAnyOption) {
  Problem problem = Problem::Make(8, 4, 10);
  problem.targets[5] = -100;
  const Options options{.chunk = 3,
                        .label_smoothing = 0.1,
                        .class_weights = torch::rand({10}) + 0.1,
                        .z_loss = 0.1,
                        .soft_cap = 2};
  const auto clean = problem.Derived(problem.Chunked(options));
  {
    const torch::NoGradGuard no_grad;
    problem.hidden[5].fill_(INFINITY);
  }
  const auto broken = problem.Derived(problem.Chunked(options));
  for (std::size_t i = 0; i < clean.size(); ++i)
    EXPECT_TRUE(torch::equal(clean[i], broken[i])) << i;
}

TEST(LinearCrossEntropy, RefusesOptionsThatCannotBe) {
  const Problem problem = Problem::Make(4, 3, 6);
  const std::vector<Options> all = {{.chunk = -1},
                                    {.label_smoothing = 1.5},
                                    {.label_smoothing = NAN},
                                    {.class_weights = torch::ones({5})},
                                    {.class_weights = torch::ones({6}, at::kLong)},
                                    {.class_weights = at::Tensor()},
                                    {.z_loss = -1},
                                    {.soft_cap = INFINITY},
                                    {.soft_cap = -1}};
  for (const Options& options : all) {
    EXPECT_THROW(problem.Chunked(options), c10::Error);
  }
  EXPECT_THROW(LinearCrossEntropy({}, problem.weight, {}, problem.targets), c10::Error);
  EXPECT_THROW(LinearCrossEntropy(problem.hidden, problem.weight, problem.hidden, problem.targets),
               c10::Error);
  EXPECT_THROW(LinearCrossEntropy(problem.hidden, problem.weight, {}, problem.hidden), c10::Error);
}

TEST(LinearCrossEntropy, IgnoresAnotherIndex) {
  Problem problem = Problem::Make(20, 8, 30);
  problem.targets[2] = 4;
  const Options options{.chunk = 6, .ignore_index = 4};
  ExpectRelative(problem.Derived(problem.Chunked(options)), problem.Derived(problem.Plain(options)),
                 1e-6);
  // An ignored row says nothing, even if there is no number in it.
  Problem broken = problem;
  broken.hidden = problem.hidden.detach().clone();
  broken.hidden[2].fill_(INFINITY);
  broken.hidden.requires_grad_();
  const auto derived = broken.Derived(broken.Chunked(options));
  EXPECT_TRUE(derived[0][2].eq(0).all().item<bool>());
  EXPECT_TRUE(derived[1].isfinite().all().item<bool>());
  EXPECT_TRUE(derived[2].isfinite().all().item<bool>());
  EXPECT_TRUE(derived.back().isfinite().item<bool>());
}

TEST(LinearCrossEntropy, AgreesWithDifferences) {
  const Problem problem = Problem::Make(6, 4, 9, at::kDouble);
  const Options options{.chunk = 4};
  const auto gradients =
      torch::autograd::grad({problem.Chunked(options)}, {problem.hidden, problem.weight});
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  const at::Tensor inputs[] = {problem.hidden, problem.weight};
  for (int which = 0; which < 2; ++which) {
    at::Tensor flat = inputs[which].view(-1);
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      flat[i] += kStep;
      const double above = problem.Chunked(options).item<double>();
      flat[i] -= 2 * kStep;
      const double below = problem.Chunked(options).item<double>();
      flat[i] += kStep;
      EXPECT_NEAR(gradients[static_cast<std::size_t>(which)].reshape(-1)[i].item<double>(),
                  (above - below) / (2 * kStep), 1e-8);
    }
  }
}

TEST(LinearCrossEntropy, TakesMoreDimensionsAndNoBias) {
  const Problem problem = Problem::Make(24, 8, 30);
  const at::Tensor folded = problem.hidden.view({2, 12, 8});
  const at::Tensor loss =
      LinearCrossEntropy(folded, problem.weight, std::nullopt, problem.targets.view({2, 12}));
  const at::Tensor want =
      F::cross_entropy(F::linear(problem.hidden, problem.weight), problem.targets);
  ExpectRelative(torch::autograd::grad({loss}, {problem.hidden}),
                 torch::autograd::grad({want}, {problem.hidden}), 1e-6);
}

TEST(LinearCrossEntropy, WorksUnderAutocast) {
  const Problem problem = Problem::Make(64, 32, 200);
  const Options options{.chunk = 20};
  const auto exact = problem.Derived(problem.Plain(options));
  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  const at::Tensor loss = problem.Chunked(options);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const auto derived = problem.Derived(loss);
  EXPECT_EQ(derived[1].scalar_type(), at::kFloat);
  ExpectRelative(derived, problem.Derived(problem.Plain(options)), 0.02);
  ExpectRelative(derived, exact, 0.02);
}

/// What the step takes beyond parameters and gradients.
template <class Loss>
Bytes PeakOf(const Problem& problem, Loss loss) {
  CpuAllocator& memory = CpuAllocator::Installed();
  memory.ResetPeak();
  const Bytes before = memory.allocated();
  loss().backward();
  const Bytes peak = memory.peak() - before;
  for (const at::Tensor* tensor : {&problem.hidden, &problem.weight, &problem.bias}) {
    tensor->mutable_grad() = at::Tensor();
  }
  return peak;
}

TEST(LinearCrossEntropy, NeverHasTheLogitsWhole) {
  CpuAllocator::Installed();
  const Problem problem = Problem::Make(1024, 32, 8192);
  const Bytes logits = 1024 * 8192 * 4;
  const Bytes gradients = (1024 * 32 + 8192 * 32 + 8192) * 4;
  const Bytes plain = PeakOf(problem, [&] { return problem.Plain({}); });
  const Bytes chunked = PeakOf(problem, [&] { return problem.Chunked({.chunk = 16}); });
  EXPECT_GE(plain, 2 * logits);
  EXPECT_LE(chunked, gradients + logits / 32);
  testing::Test::RecordProperty("plain_bytes", std::to_string(plain));
  testing::Test::RecordProperty("chunked_bytes", std::to_string(chunked));
}

TEST(LinearCrossEntropy, MakesNoGradientsThatNobodyWants) {
  const Problem problem = Problem::Make(1024, 32, 8192);
  CpuAllocator& memory = CpuAllocator::Installed();
  const torch::NoGradGuard no_grad;
  memory.ResetPeak();
  const Bytes before = memory.allocated();
  const at::Tensor loss = problem.Chunked({.chunk = 4});
  EXPECT_LT(memory.peak() - before, 8192 * 32 * 4);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item<double>(), problem.Plain({}).item<double>(), 1e-4);
}

TEST(LinearCrossEntropy, SaysThatBackwardWorksOnce) {
  const Problem problem = Problem::Make(8, 4, 10);
  const at::Tensor loss = problem.Chunked({});
  torch::autograd::grad({loss}, {problem.hidden}, {}, /*retain_graph=*/true);
  EXPECT_THROW(torch::autograd::grad({loss}, {problem.hidden}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::cross_entropy_test
