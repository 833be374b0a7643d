// What the header of Trainer promises besides training: memory, sameness, errors.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "train/budget/cpu_allocator.h"
#include "train/common/nightly_for_tests.h"
#include "train/optimizers/adam8bit.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/host_optimizer.h"
#include "train/trainer/trainer_for_tests.h"

namespace plimsoll::train::trainer_promises_test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

using MakeOptimizer = std::function<std::shared_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;
template <class Optimizer, class Options>
MakeOptimizer Making(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_shared<Optimizer>(std::move(parameters), options);
  };
}

/// The least limit, over what was there before, under which it does not run out.
template <class Function>
Bytes LeastLimit(Function runs) {
  Bytes too_little = 0;
  Bytes enough = 64 * kMiB;
  while (enough - too_little > 16 * kKiB) {
    const Bytes middle = too_little + (enough - too_little) / 2;
    (runs(middle) ? enough : too_little) = middle;
  }
  return enough;
}

struct OptimizerCase {
  const char* name;
  MakeOptimizer make;
};
void PrintTo(const OptimizerCase& one, std::ostream* out) { *out << one.name; }

class TrainerWith : public testing::TestWithParam<OptimizerCase> {};
INSTANTIATE_TEST_SUITE_P(
    Trainer, TrainerWith,
    testing::Values(OptimizerCase{"FusedAdamW", Making<FusedAdamW>(optim::AdamWOptions(1e-3))},
                    OptimizerCase{"AdamW", Making<optim::AdamW>(optim::AdamWOptions(1e-3))},
                    OptimizerCase{"AdamW8bit", Making<AdamW8bit>(optim::AdamWOptions(1e-3))},
                    OptimizerCase{"HostAdamW", Making<HostAdamW>(optim::AdamWOptions(1e-3))},
                    OptimizerCase{"SGD",
                                  Making<optim::SGD>(optim::SGDOptions(1e-3).momentum(0.9))}),
    [](const auto& chosen) { return std::string(chosen.param.name); });

TEST_P(TrainerWith, TrainsInTheMemoryOfAPlainLoop) {
  CpuAllocator& memory = CpuAllocator::Installed();
  const Batch batch = WideBatch(8);
  const auto loss_of = [](nn::Sequential& model, const Batch& rows) {
    return model->forward(rows.tensors[0]).square().mean();
  };
  const Bytes before = memory.allocated();
  const auto plain = [&](Bytes limit) {
    memory.SetLimit(before + limit);
    bool fits = true;
    try {
      nn::Sequential model = Wide();
      const auto optimizer = GetParam().make(model->parameters());
      // The second has all that there is.
      for (int i = 0; i < 2; ++i) {
        optimizer->zero_grad();
        loss_of(model, batch).backward();
        optimizer->step();
      }
    } catch (const c10::OutOfMemoryError&) {
      fits = false;
    }
    memory.SetLimit(std::nullopt);
    return fits;
  };
  const auto within = [&](Bytes limit) {
    try {
      nn::Sequential model = Wide();
      Trainer trainer(model.ptr(), GetParam().make(model->parameters()),
                      [&](const Batch& rows) { return loss_of(model, rows); },
                      {.budget = before + limit});
      for (int i = 0; i < 2; ++i) trainer.Step(batch);
    } catch (const c10::OutOfMemoryError&) {
      return false;
    }
    return true;
  };
  const Bytes least_plain = LeastLimit(plain);
  const Bytes least_trainer = LeastLimit(within);
  std::printf("%s: plain %s, Trainer %s, %.3f\n", GetParam().name, FormatBytes(least_plain).c_str(),
              FormatBytes(least_trainer).c_str(), double(least_trainer) / double(least_plain));
  EXPECT_LE(double(least_trainer), 1.05 * double(least_plain));
}

Bytes PeakOfPlainStep(std::int64_t rows) {
  SmallGpt gpt;
  return gpt.trainer->Step(gpt.Rows(rows)).memory.peak_allocated;
}

TEST(TrainerPromises, LeastBudgetIsEnoughAndNotTooMuch) {
  Bytes least = 0;
  {
    SmallGpt gpt;
    least = gpt.trainer->LeastBudget(gpt.Rows(16));
  }
  {
    SmallGpt gpt({.budget = least});
    EXPECT_LE(gpt.trainer->Step(gpt.Rows(16)).memory.peak_allocated, least);
  }
  SmallGpt gpt({.budget = least * 9 / 10});
  EXPECT_THROW(gpt.trainer->Step(gpt.Rows(16)), DoesNotFit);
}

TEST(TrainerPromises, LeastBudgetIsOfTheFormThatTakesLeast) {
  torch::manual_seed(3);
  nn::Sequential model = Wide();
  const auto loss = [&](const Batch& rows) {
    return model->forward(rows.tensors[0]).square().mean();
  };
  const Bytes least =
      Trainer(model.ptr(), AdamWForms(model->parameters()), loss).LeastBudget(WideBatch(8));
  const Bytes fused = Trainer(model.ptr(), std::make_shared<FusedAdamW>(model->parameters()), loss)
                          .LeastBudget(WideBatch(8));
  EXPECT_LT(least, fused * 3 / 4);
  Trainer trainer(model.ptr(), AdamWForms(model->parameters()), loss, {.budget = least});
  EXPECT_EQ(trainer.Step(WideBatch(8)).optimizer, OptimizerForm::kHost);
}

TEST(TrainerPromises, DoesNotFitSaysWhy) {
  Bytes least = 0;
  {
    SmallGpt gpt;
    least = gpt.trainer->LeastBudget(gpt.Rows(16));
  }
  SmallGpt gpt({.budget = least * 8 / 10});
  try {
    gpt.trainer->Step(gpt.Rows(16));
    FAIL() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.figures().budget, least * 8 / 10);
    EXPECT_GT(error.figures().need, 0);
    EXPECT_GT(error.figures().fixed.parameters, 0);
    EXPECT_EQ(error.figures().fixed.optimizer_state, 2 * error.figures().fixed.parameters);
    std::printf("%s\n", error.what_without_backtrace());
  }
}

TEST(TrainerPromises, ChoosesTheSameEveryTime) {
  const Bytes peak = PeakOfPlainStep(32);
  std::vector<std::string> runs;
  for (int run = 0; run < Nightly(3, 2); ++run) {
    SmallGpt gpt({.budget = MemoryOf(c10::kCPU).figures().allocated + peak * 45 / 100});
    double loss = 0;
    for (std::uint64_t i = 0; i < 4; ++i) loss = gpt.trainer->Step(gpt.Rows(32, i)).loss;
    std::string text = gpt.trainer->levers().ToString() + c10::str(" ", std::hexfloat, loss);
    for (const at::Tensor& parameter : gpt.model->parameters()) {
      text += c10::str(" ", parameter.sum().item<double>());
    }
    runs.push_back(text);
  }
  for (const std::string& run : runs) EXPECT_EQ(run, runs[0]);
}

TEST(TrainerPromises, CallsTheLossRarelyBeforeItBegins) {
  const Bytes peak = PeakOfPlainStep(32);
  SmallGpt gpt({.budget = MemoryOf(c10::kCPU).figures().allocated + peak / 2});
  gpt.trainer.reset();
  int calls = 0;
  Trainer trainer(gpt.model, std::make_shared<FusedAdamW>(gpt.model->parameters()),
                  [&](const Batch& rows) {
                    ++calls;
                    return gpt.model->Loss(rows);
                  },
                  {.budget = MemoryOf(c10::kCPU).figures().allocated + peak / 2});
  trainer.Step(gpt.Rows(32));
  const auto pieces = (32 + trainer.levers().micro_batch - 1) / trainer.levers().micro_batch;
  std::printf("%d calls, %s\n", calls, trainer.levers().ToString().c_str());
  EXPECT_LE(calls, 30 + pieces);
}

TEST(TrainerPromises, ASecondBudgetOnADeviceIsAnError) {
  SmallGpt first({.budget = kGiB});
  EXPECT_THROW(SmallGpt({.budget = 2 * kGiB}), c10::Error);
  // And the first is still there.
  EXPECT_EQ(MemoryOf(c10::kCPU).limit(), kGiB);
}

TEST(TrainerPromises, NonsenseIsRefused) {
  EXPECT_THROW(SmallGpt({.micro_batch = -3}), c10::Error);
  EXPECT_THROW(SmallGpt({.clip_norm = -1}), c10::Error);
  EXPECT_THROW(SmallGpt({.budget = 0}), c10::Error);
  const SmallGpt gpt;
  const auto optimizer = std::make_shared<FusedAdamW>(gpt.model->parameters());
  const auto loss = [&](const Batch& rows) { return gpt.model->Loss(rows); };
  EXPECT_THROW(Trainer(nullptr, optimizer, loss), c10::Error);
  EXPECT_THROW(Trainer(gpt.model, std::shared_ptr<optim::Optimizer>(), loss), c10::Error);
  EXPECT_THROW(Trainer(gpt.model, optimizer, nullptr), c10::Error);
  Trainer trainer(gpt.model, optimizer, loss);
  EXPECT_THROW(trainer.Step({}), c10::Error);
}

TEST(TrainerPromises, WhateverIsThrownNothingHasChanged) {
  const SmallGpt gpt;
  bool fail = false;
  Trainer trainer(gpt.model, std::make_shared<FusedAdamW>(gpt.model->parameters()),
                  [&](const Batch& rows) {
                    const at::Tensor loss = gpt.model->Loss(rows);
                    if (fail) throw 42;
                    return loss;
                  });
  trainer.Step(gpt.Rows(4));
  const std::string before = TextOf(*gpt.model);
  fail = true;
  EXPECT_THROW(trainer.Step(gpt.Rows(4)), int);
  EXPECT_EQ(TextOf(*gpt.model), before);
  EXPECT_EQ(trainer.steps(), 1);
  fail = false;
  EXPECT_EQ(trainer.Step(gpt.Rows(4)).step, 1);
}

TEST(TrainerPromises, WhatIsNotFiniteDoesNotReachTheParameters) {
  for (const NotFinite policy : {NotFinite::kStop, NotFinite::kSkip}) {
    nn::Sequential model = Wide();
    bool spoil = false;
    Trainer trainer(model.ptr(), std::make_shared<FusedAdamW>(model->parameters()),
                    [&](const Batch& rows) {
                      const at::Tensor x = model->forward(rows.tensors[0]);
                      return spoil ? (x.square().mean() * 0).sqrt() : x.square().mean();
                    },
                    {.not_finite = policy});
    trainer.Step(WideBatch(4));
    const std::string before = TextOf(*model);
    spoil = true;
    if (policy == NotFinite::kStop) {
      try {
        trainer.Step(WideBatch(4));
        FAIL() << "went on";
      } catch (const NotFiniteError& error) {
        EXPECT_EQ(error.tensor(), "0.weight");
      }
    } else {
      const StepReport report = trainer.Step(WideBatch(4));
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.not_finite, "0.weight");
    }
    EXPECT_EQ(TextOf(*model), before);
  }
}

TEST(TrainerPromises, SharedParametersAreSteppedOnce) {
  const auto train = [](bool twice) {
    torch::manual_seed(3);
    nn::Sequential model = Wide();
    std::vector<at::Tensor> parameters = model->parameters();
    if (twice) parameters.push_back(parameters[0]);
    Trainer trainer(model.ptr(), std::make_shared<FusedAdamW>(parameters), [&](const Batch& rows) {
      return model->forward(rows.tensors[0]).square().mean();
    });
    trainer.Step(WideBatch(4));
    return TextOf(*model);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(TrainerPromises, RunningStatisticsDoNotDependOnCheckpoints) {
  const auto statistics = [](const char* policy) {
    torch::manual_seed(11);
    const auto model = MakeModel(
        "unet",
        {.width = 4, .classes = 3, .in_channels = 3, .normalization = Normalization::kBatch});
    Trainer trainer(model, std::make_shared<FusedAdamW>(model->parameters()),
                    [&](const Batch& rows) { return model->Loss(rows); },
                    {.checkpoint = CheckpointPolicy::Parse(policy)});
    auto generator = at::detail::createCPUGenerator(7);
    for (int i = 0; i < 3; ++i) {
      trainer.Step({{torch::randn({4, 3, 32, 32}, generator, at::kFloat),
                     torch::randint(0, 3, {4, 32, 32}, generator, at::kLong)}});
    }
    std::string text;
    for (const at::Tensor& buffer : model->buffers()) {
      text += c10::str(buffer.to(at::kDouble).sum().item<double>(), "\n");
    }
    return text;
  };
  const std::string plain = statistics("none");
  EXPECT_FALSE(plain.empty());
  EXPECT_EQ(statistics("all"), plain);
}

TEST(TrainerPromises, MetricsSeeEachSampleOnce) {
  const Bytes peak = PeakOfPlainStep(32);
  const SmallGpt gpt;
  std::unique_ptr<Trainer> trainer;
  trainer = std::make_unique<Trainer>(
      gpt.model, std::make_shared<FusedAdamW>(gpt.model->parameters()),
      [&](const Batch& rows) {
        trainer->metrics().Add("first token",
                               rows.tensors[0].select(1, 0).to(at::kDouble).mean().item<double>(),
                               static_cast<double>(rows.size()));
        return gpt.model->Loss(rows);
      },
      TrainerOptions{.budget = MemoryOf(c10::kCPU).figures().allocated + peak / 2});
  const Batch batch = gpt.Rows(32);
  const StepReport report = trainer->Step(batch);
  EXPECT_LT(report.levers.micro_batch, 32);
  EXPECT_NEAR(report.metrics.at("first token"),
              batch.tensors[0].select(1, 0).to(at::kDouble).mean().item<double>(), 1e-9);
}

TEST(TrainerPromises, EvaluatesWithinTheBudget) {
  double whole = 0;
  Bytes least = 0;
  {
    const SmallGpt gpt;
    whole = gpt.trainer->Evaluate(gpt.Rows(256));
    least = gpt.trainer->LeastBudget(gpt.Rows(4));
  }
  const SmallGpt gpt({.budget = least});
  const std::string before = TextOf(*gpt.model);
  EXPECT_NEAR(gpt.trainer->Evaluate(gpt.Rows(256)), whole, 1e-5);
  EXPECT_TRUE(gpt.model->is_training());
  EXPECT_EQ(TextOf(*gpt.model), before);
}

TEST(TrainerPromises, TheFormOfTheOptimizerIsALever) {
  const auto loss = [](nn::Sequential model, const Batch& rows) {
    return model->forward(rows.tensors[0]).square().mean();
  };
  const auto path = std::filesystem::temp_directory_path() / c10::str("plimsoll_form_", getpid());
  // Parameters, gradients and state are four times the parameters; the host takes two of them.
  const Bytes before = MemoryOf(c10::kCPU).figures().allocated;
  torch::manual_seed(3);
  nn::Sequential model = Wide();
  const Bytes parameters = MemoryOf(c10::kCPU).figures().allocated - before;
  double last = 0;
  {
    Trainer trainer(model.ptr(), AdamWForms(model->parameters()),
                    [&](const Batch& rows) { return loss(model, rows); },
                    {.budget = before + 3 * parameters});
    for (int i = 0; i < 3; ++i) last = trainer.Step(WideBatch(8)).loss;
    EXPECT_EQ(trainer.optimizer_form(), OptimizerForm::kHost);
    trainer.Save(path);
    last = trainer.Step(WideBatch(8)).loss;
  }
  // With more memory it goes on as a fused one.
  Trainer trainer(model.ptr(), AdamWForms(model->parameters()),
                  [&](const Batch& rows) { return loss(model, rows); },
                  {.budget = before + 8 * parameters});
  trainer.Load(path);
  const StepReport report = trainer.Step(WideBatch(8));
  EXPECT_EQ(report.optimizer, OptimizerForm::kFused);
  EXPECT_NEAR(report.loss, last, 1e-6 * last);
  std::filesystem::remove(path);
}

TEST(TrainerPromises, SchedulesAndAveragesGoOnAfterALoad) {
  const auto path = std::filesystem::temp_directory_path() / c10::str("plimsoll_ema_", getpid());
  const TrainerOptions options{
      .schedule =
          ScheduleOptions{.shape = ScheduleOptions::Shape::kCosine, .warm_up = 2, .steps = 8},
      .ema = EmaOptions{.decay = 0.9}};
  const auto run = [&](SmallGpt& gpt, int steps) {
    for (int i = 0; i < steps; ++i) {
      gpt.trainer->Step(gpt.Rows(4, static_cast<std::uint64_t>(gpt.trainer->steps())));
    }
  };
  SmallGpt straight(options);
  run(straight, 6);
  {
    SmallGpt first(options);
    run(first, 3);
    first.trainer->Save(path);
  }
  SmallGpt second(options);
  second.trainer->Load(path);
  run(second, 3);
  EXPECT_EQ(TextOf(*second.model), TextOf(*straight.model));
  EXPECT_EQ(second.trainer->Evaluate(second.Rows(8)), straight.trainer->Evaluate(straight.Rows(8)));
  // The rate of step 5, of 8 with two of warm-up.
  const double rate = straight.trainer->optimizers()[0]->param_groups()[0].options().get_lr();
  EXPECT_NEAR(rate, 1e-3 * FactorAt(*options.schedule, 5), 1e-12);
  // A trainer without averages does not take them for something else.
  SmallGpt without;
  EXPECT_THROW(without.trainer->Load(path), c10::Error);
  std::filesystem::remove(path);
}

TEST(TrainerPromises, TrainsOrThrowsAroundTheLeastBudget) {
  const Bytes least = SmallGpt().trainer->LeastBudget(SmallGpt().Rows(16));
  for (const Bytes more : IsNightly() ? std::vector<Bytes>{-20000, -2000, -400, 0, 400, 2000, 20000}
                                      : std::vector<Bytes>{-400, 0, 2000}) {
    SmallGpt gpt({.budget = least + more});
    try {
      for (std::uint64_t i = 0; i < 3; ++i) {
        EXPECT_LE(gpt.trainer->Step(gpt.Rows(16, i)).memory.peak_allocated, least + more);
      }
    } catch (const DoesNotFit&) {
      EXPECT_LT(more, 1000);
    }
  }
}

TEST(TrainerPromises, GivesWayToAnEndWithAFormToo) {
  SmallGpt gpt;
  gpt.trainer.reset();
  Trainer trainer(gpt.model, AdamWForms(gpt.model->parameters()),
                  [&](const Batch& rows) { return gpt.model->Loss(rows); });
  trainer.Step(gpt.Rows(16));
  // Another program takes nearly everything: it gives way as far as it can, and says so.
  DeviceMemory& memory = MemoryOf(c10::kCPU);
  const Batch batch = gpt.Rows(16);
  memory.SetLimit(memory.figures().allocated + 40 * kKiB);
  EXPECT_THROW(trainer.Step(batch), DoesNotFit);
  memory.SetLimit(std::nullopt);
  EXPECT_NO_THROW(trainer.Step(gpt.Rows(16)));
}

TEST(TrainerPromises, RowsToIgnoreMayComeFirst) {
  nn::Sequential model = Wide();
  const auto counted = [](const Batch& rows) { return rows.tensors[1].sum().item<double>(); };
  Trainer trainer(model.ptr(), std::make_shared<FusedAdamW>(model->parameters()),
                  [&](const Batch& rows) {
                    const at::Tensor each = model->forward(rows.tensors[0]).square().mean(1);
                    return (each * rows.tensors[1]).sum() / std::max(counted(rows), 1.0);
                  },
                  {.weight = counted, .micro_batch = 2});
  Batch batch = WideBatch(8);
  batch.tensors.push_back(torch::ones({8}));
  batch.tensors[1].slice(0, 0, 3).zero_();
  EXPECT_GT(trainer.Step(batch).loss, 0);
}

TEST(TrainerPromises, NothingIsDoneWhileAveragesAreSwappedIn) {
  SmallGpt gpt({.ema = EmaOptions{}});
  gpt.trainer->Step(gpt.Rows(4));
  const std::string before = TextOf(*gpt.model);
  {
    const auto swapped = gpt.trainer->ema()->SwapIn();
    EXPECT_THROW(gpt.trainer->Step(gpt.Rows(4)), c10::Error);
    EXPECT_THROW(gpt.trainer->Save("/nowhere"), c10::Error);
  }
  EXPECT_EQ(TextOf(*gpt.model), before);
}

TEST(TrainerPromises, SeveralOptimizersStepTogether) {
  torch::manual_seed(3);
  nn::Sequential model = Wide();
  const auto parameters = model->parameters();
  const std::vector<at::Tensor> first(parameters.begin(), parameters.begin() + 4);
  const std::vector<at::Tensor> rest(parameters.begin() + 4, parameters.end());
  const auto loss = [&](const Batch& rows) {
    return model->forward(rows.tensors[0]).square().mean();
  };
  Trainer trainer(model.ptr(),
                  Trainer::Optimizers{std::make_shared<FusedAdamW>(first),
                                      std::make_shared<optim::SGD>(rest, optim::SGDOptions(0.01))},
                  loss);
  const double begin = trainer.Step(WideBatch(4)).loss;
  CpuAllocator& memory = CpuAllocator::Installed();
  memory.FailAt(memory.requests() + 60);
  trainer.Step(WideBatch(4));
  EXPECT_LT(trainer.Step(WideBatch(4)).loss, begin);
  EXPECT_THROW(Trainer(model.ptr(),
                       Trainer::Optimizers{std::make_shared<FusedAdamW>(first),
                                           std::make_shared<FusedAdamW>(first)},
                       loss),
               c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::trainer_promises_test
