#include "train/bench/train_speed.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "train/checkpointing/autocast.h"
#include "train/common/wall_clock.h"
#include "train/data/memory_format.h"
#include "train/gradients/recovery.h"
#include "train/optimizers/fused_adam.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train {
namespace {

struct Row {
  std::string job;
  std::int64_t rows;
  Precision precision = Precision::kFloat32;
  bool channels_last = false;
};

struct Timed {
  double milliseconds = 0;
  Bytes held = 0;
};

/// As train/bench/train_twins.py: the median of three rounds, the device waited for at the end of
/// each.
template <class Step>
Timed TimeOf(const Bench& bench, Step step) {
  constexpr double kRound = 0.25;
  // The first steps choose algorithms and make the optimizer's state; of a Trainer, also levers and
  // the graph.
  for (int i = 0; i < 3; ++i) step();
  const auto seconds_of = [&](int steps) {
    Wait(bench.device);
    const double begin = Seconds();
    for (int i = 0; i < steps; ++i) step();
    Wait(bench.device);
    return (Seconds() - begin) / steps;
  };
  const int steps = std::clamp(static_cast<int>(kRound / seconds_of(1)), 2, 100);
  MemoryOf(bench.device).ResetPeaks();
  std::vector<double> times;
  for (int round = 0; round < 3; ++round) times.push_back(1000 * seconds_of(steps));
  std::ranges::sort(times);
  return {times[1], MemoryOf(bench.device).figures().peak_reserved};
}

/// What a step is made of, for each way to run it.
struct Parts {
  Parts(const Bench& bench, const Job& job, const Row& row) {
    torch::manual_seed(5);
    model = job.make();
    model->to(bench.device);
    batch = job.batch(row.rows);
    if (row.channels_last) {
      UseChannelsLast(*model);
      batch = InChannelsLast(batch);
    }
  }
  std::shared_ptr<FusedAdamW> Optimizer() const {
    return std::make_shared<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(1e-4));
  }

  std::shared_ptr<TrainModel> model;
  Batch batch;
};

Timed TimeOfLoop(const Bench& bench, const Parts& parts, const Row& row) {
  MemoryOf(bench.device).ReleaseCached();
  const auto optimizer = parts.Optimizer();
  const Timed timed = TimeOf(bench, [&] {
    ClearGradients(*parts.model);
    at::Tensor loss;
    {
      std::optional<AutocastScope> autocast;
      if (row.precision == Precision::kBfloat16)
        autocast.emplace(bench.device.type(), at::kBFloat16);
      loss = parts.model->Loss(parts.batch);
    }
    loss.backward();
    optimizer->step();
  });
  ClearGradients(*parts.model);
  return timed;
}

Timed TimeOfTrainer(const Bench& bench, const Parts& parts, const Row& row, bool graph) {
  MemoryOf(bench.device).ReleaseCached();
  Trainer trainer(parts.model, parts.Optimizer(),
                  [&](const Batch& batch) { return parts.model->Loss(batch); },
                  {.device = bench.device, .precision = row.precision, .cuda_graph = graph});
  const Timed timed = TimeOf(bench, [&] { trainer.Step(parts.batch); });
  TORCH_CHECK(trainer.Step(parts.batch).graphed == (graph && bench.large()),
              "no CUDA graph was used");
  return timed;
}

std::vector<Row> Rows(const Bench& bench) {
  constexpr auto kBf16 = Precision::kBfloat16;
  std::vector<Row> rows;
  const auto add = [&](const char* job, std::int64_t size, bool image) {
    rows.push_back({job, bench.large() ? size : 4});
    rows.push_back({job, bench.large() ? size : 4, kBf16});
    if (image) rows.push_back({job, bench.large() ? size : 4, kBf16, true});
  };
  add("gpt", 8, false);
  add("unet", 4, true);
  add("resnet50", 32, true);
  add("resnet50", 128, true);
  for (const std::int64_t size : {8, 32}) {
    add("own", size, false);
    rows.push_back({"own-light", bench.large() ? size : 4, kBf16});
  }
  return rows;
}

/// The user's own transformer with the library's linear layers.
Job WithLightLinear(const Bench& bench, const Job& own) {
  Job job = own;
  job.name = "own-light";
  job.make = [large = bench.large()]() -> std::shared_ptr<TrainModel> {
    OwnTransformerOptions sizes;
    if (!large) sizes = {.width = 64, .layers = 6, .heads = 4};
    return std::make_shared<OwnTransformerOf<LightLinear>>(sizes);
  };
  return job;
}

/// A training of five steps, with what may matter to a graph.
struct Case {
  const char* what;
  TrainerOptions options;
  bool resnet = false;
  double dropout = 0;
  /// Looks at its value on the host.
  bool loss_is_read = false;
  bool adds_metric = false;
  bool other_shape_between = false;
  bool loaded_between = false;
  /// A budget of what the run without graph held.
  bool tight = false;
};

struct Outcome {
  std::vector<at::Tensor> tensors;
  int graphed = 0;
  Bytes held = 0;
};

constexpr int kSteps = 5;

struct Small {
  std::shared_ptr<TrainModel> model;
  std::function<Batch(std::int64_t rows)> batch;
};

Small SmallModel(const Bench& bench, const Case& test) {
  if (test.resnet) {
    return {std::make_shared<ResNet50>(8), [bench](std::int64_t rows) {
              return Batch{{torch::randn({rows, 3, 64, 64}).to(bench.device),
                            torch::randint(0, 1000, {rows}, at::kLong).to(bench.device)}};
            }};
  }
  const GptOptions sizes{.vocabulary = 1000,
                         .context = 128,
                         .width = 256,
                         .layers = 4,
                         .heads = 4,
                         .dropout = test.dropout};
  return {std::make_shared<Gpt>(sizes),
          [bench, sizes](std::int64_t rows) { return Tokens(bench, sizes, rows); }};
}

Outcome Run(const Bench& bench, const Case& test, TrainerOptions options) {
  MemoryOf(bench.device).ReleaseCached();
  torch::manual_seed(5);
  const auto [model, batch] = SmallModel(bench, test);
  model->to(bench.device);
  options.device = bench.device;
  Trainer* self = nullptr;
  Trainer trainer(
      model, std::make_shared<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(1e-3)),
      [&, model = model](const Batch& rows) {
        const at::Tensor loss = model->Loss(rows);
        if (test.loss_is_read) TORCH_CHECK(std::isfinite(loss.item<double>()));
        if (test.adds_metric) self->metrics().Add("rows", static_cast<double>(rows.size()));
        return loss;
      },
      options);
  self = &trainer;
  Outcome outcome;
  for (int i = 0; i < kSteps; ++i) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + i));
    const StepReport report = trainer.Step(batch(test.other_shape_between && i == 2 ? 5 : 8));
    outcome.graphed += report.graphed;
    outcome.held = std::max(outcome.held, report.memory.peak_reserved);
    outcome.tensors.push_back(torch::tensor(report.loss));
    if (test.loaded_between && i == 2) {
      const auto path = std::filesystem::temp_directory_path() / "train_bench_check.state";
      trainer.Save(path);
      trainer.Load(path);
      std::filesystem::remove(path);
    }
  }
  for (const auto& list : {model->parameters(), model->buffers()}) {
    // To the host: the budget of the run is full.
    for (const at::Tensor& one : list)
      outcome.tensors.push_back(one.detach().to(c10::kCPU).clone());
  }
  return outcome;
}

/// The largest, against the largest number of its tensor.
double Difference(const Outcome& one, const Outcome& other) {
  double worst = 0;
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    const at::Tensor expected = other.tensors[i].to(at::kDouble);
    const at::Tensor off = (one.tensors[i].to(at::kDouble) - expected).abs().max();
    worst = std::max(worst, (off / expected.abs().max().clamp_min(1e-30)).item<double>());
  }
  return worst;
}

/// The weight of a row is its first target.
double FirstTargets(const Batch& rows) {
  return rows.tensors[1].select(1, 0).sum().item<double>() + 1;
}

std::vector<Case> Cases() {
  const CheckpointPolicy all = CheckpointPolicy::All();
  return {
      {.what = "GPT", .options = {}},
      {.what = "micro-batches of 3", .options = {.micro_batch = 3}},
      {.what = "the same, rows of unequal weight",
       .options = {.weight = FirstTargets, .micro_batch = 3}},
      {.what = "checkpoint all", .options = {.checkpoint = all}},
      {.what = "bf16, clipped", .options = {.precision = Precision::kBfloat16, .clip_norm = 0.5}},
      {.what = "fp16, micro-batches of 4, saved and loaded",
       .options = {.precision = Precision::kFloat16, .micro_batch = 4},
       .loaded_between = true},
      {.what = "dropout", .options = {}, .dropout = 0.1},
      {.what = "dropout, checkpoint all", .options = {.checkpoint = all}, .dropout = 0.1},
      {.what = "dropout, loss read on the host",
       .options = {},
       .dropout = 0.1,
       .loss_is_read = true},
      {.what = "a metric", .options = {}, .adds_metric = true},
      {.what = "another shape between", .options = {}, .other_shape_between = true},
      {.what = "offload", .options = {.offload = true}},
      {.what = "a budget of what it takes without", .options = {}, .tight = true},
      {.what = "ResNet-50", .options = {}, .resnet = true},
      {.what = "ResNet-50, checkpoint all", .options = {.checkpoint = all}, .resnet = true},
  };
}

}  // namespace

void Speed(const Bench& bench) {
  std::printf(
      "\n| model | batch | precision | loop, ms | Trainer, ms | graph, ms | Trainer holds, MiB | "
      "graph holds, MiB |\n|---|---|---|---|---|---|---|---|\n");
  std::vector<Job> jobs = Jobs(bench);
  jobs.push_back(WithLightLinear(bench, *std::ranges::find(jobs, "own", &Job::name)));
  for (const Row& row : Rows(bench)) {
    const Job& job = *std::ranges::find(jobs, row.job, &Job::name);
    const Parts parts(bench, job, row);
    const Timed loop = TimeOfLoop(bench, parts, row);
    const Timed trainer = TimeOfTrainer(bench, parts, row, false);
    const Timed graph = TimeOfTrainer(bench, parts, row, true);
    std::printf("| %s | %ld | %s%s | %.2f | %.2f | %.2f | %.0f | %.0f |\n", row.job.c_str(),
                row.rows, std::string(PrecisionName(row.precision)).c_str(),
                row.channels_last ? " channels-last" : "", loop.milliseconds, trainer.milliseconds,
                graph.milliseconds, Mebibytes(trainer.held), Mebibytes(graph.held));
    std::fflush(stdout);
  }
}

void CheckGraphs(const Bench& bench) {
  std::printf(
      "\n| five steps with a CUDA graph | steps that used it | largest difference, relative | "
      "without it, twice |\n|---|---|---|---|\n");
  for (const Case& test : Cases()) {
    TrainerOptions options = test.options;
    const Outcome without = Run(bench, test, options);
    const Outcome again = Run(bench, test, options);
    options.cuda_graph = true;
    if (test.tight) options.budget = without.held;
    const Outcome with = Run(bench, test, options);
    const double off = Difference(with, without);
    std::printf("| %s | %d of %d | %.1e%s | %.1e |\n", test.what, with.graphed, kSteps, off,
                off == 0 ? ", bit for bit" : "", Difference(again, without));
    std::fflush(stdout);
  }
}

}  // namespace plimsoll::train
