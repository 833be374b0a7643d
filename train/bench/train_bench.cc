// What each mechanism of plimsoll::train saves and costs, against plain LibTorch in the same
// program:
//   train_bench check|memory|optimizers|budget|least|story|speed [DEVICE]
// On an H200 in a few minutes; on a CPU with sizes that fit it. docs/train.md shows what it
// printed.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>

#include "train/bench/train_jobs.h"
#include "train/bench/train_speed.h"
#include "train/checkpointing/autocast.h"
#include "train/checkpointing/saved_tensors.h"
#include "train/common/wall_clock.h"
#include "train/data/memory_format.h"
#include "train/gradients/recovery.h"
#include "train/graphs/graphed_step.h"
#include "train/optimizers/adam8bit.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/host_optimizer.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train {
namespace {

struct Measured {
  /// Held at the end of forward, beyond what was there before.
  Bytes saved = 0;
  /// Beyond parameters, gradients and state, at the worst moment.
  Bytes peak = 0;
  double milliseconds = 0;
  double loss = 0;
};

using Forward = std::function<at::Tensor()>;

/// Forward and backward, some times; the median of the time.
Measured Measure(c10::Device device, torch::nn::Module& model, const Forward& forward,
                 int rounds = 5) {
  DeviceMemory& memory = MemoryOf(device);
  Measured result;
  std::vector<double> times;
  for (int round = 0; round < rounds + 3; ++round) {
    ClearGradients(model);
    Wait(device);
    const Bytes before = memory.figures().allocated;
    memory.ResetPeaks();
    const double begin = Seconds();
    const at::Tensor loss = forward();
    result.saved = memory.figures().allocated - before;
    loss.backward();
    Wait(device);
    if (round >= 3) times.push_back((Seconds() - begin) * 1000);
    result.peak = memory.figures().peak_allocated - before;
    result.loss = loss.item<double>();
  }
  std::sort(times.begin(), times.end());
  result.milliseconds = times[times.size() / 2];
  ClearGradients(model);
  return result;
}

void PrintRow(const char* what, const Measured& now, const Measured& plain) {
  const auto percent = [](double a, double b) { return b == 0 ? 0 : 100 * a / b; };
  std::printf("| %s | %.0f | %.1f %% | %.0f | %.1f %% | %.1f | %+.1f %% | %.5f |\n", what,
              Mebibytes(now.saved),
              percent(static_cast<double>(now.saved), static_cast<double>(plain.saved)),
              Mebibytes(now.peak),
              percent(static_cast<double>(now.peak), static_cast<double>(plain.peak)),
              now.milliseconds, percent(now.milliseconds, plain.milliseconds) - 100, now.loss);
  std::fflush(stdout);
}

void MemoryOfGpt(const Bench& bench, Precision precision) {
  torch::manual_seed(1);
  const GptOptions sizes = GptSizes(bench, 24);
  const auto model = std::make_shared<Gpt>(sizes);
  model->to(bench.device);
  const Batch batch = Tokens(bench, sizes, 8);
  const auto forward = [&] {
    std::optional<AutocastScope> autocast;
    if (precision == Precision::kBfloat16) autocast.emplace(bench.device.type(), at::kBFloat16);
    return model->Loss(batch);
  };
  std::printf("\nGPT of 24 layers, width %ld, batch 8 x %ld, %s, forward and backward\n\n",
              sizes.width, sizes.context, std::string(PrecisionName(precision)).c_str());
  std::printf(
      "| | saved by forward, MiB | of plain | peak, MiB | of plain | ms | time | loss "
      "|\n|---|---|---|---|---|---|---|---|\n");
  const Measured plain = Measure(bench.device, *model, forward);
  PrintRow("plain", plain, plain);
  for (const char* policy : {"all", "sqrt", "plan:0,2,4,6,8,10,12,14,16,18,20,22"}) {
    model->set_checkpoint_policy(CheckpointPolicy::Parse(policy));
    PrintRow((std::string("checkpoint ") + policy).c_str(), Measure(bench.device, *model, forward),
             plain);
  }
  model->set_checkpoint_policy({});
  for (const double kept : {0.0, 0.1, 0.2}) {
    const auto share = static_cast<Bytes>(kept * static_cast<double>(plain.saved));
    Offload offload(bench.device, model->parameters(),
                    {.least = bench.large() ? kMiB : 256,
                     .keep_last = share,
                     .in_flight = share / 4 + 64 * kMiB,
                     .prefetch = share / 4 + 64 * kMiB});
    const auto offloaded = [&] {
      const SavedTensorScope scope(offload.policy(batch.tensors));
      return forward();
    };
    char name[40];
    std::snprintf(name, sizeof name, "offload, %.0f %% kept", kept * 100);
    PrintRow(name, Measure(bench.device, *model, offloaded), plain);
  }
  model->loss()->set_chunked(true);
  PrintRow("chunked cross-entropy", Measure(bench.device, *model, forward), plain);
  model->set_checkpoint_policy(CheckpointPolicy::All());
  PrintRow("checkpoint all, chunked cross-entropy", Measure(bench.device, *model, forward), plain);
}

template <class Optimizer>
Bytes StateOf(const Bench& bench, double* milliseconds) {
  torch::manual_seed(1);
  const auto model = std::make_shared<Gpt>(GptSizes(bench, 12));
  model->to(bench.device);
  for (at::Tensor& parameter : model->parameters())
    parameter.mutable_grad() = torch::randn_like(parameter);
  Optimizer optimizer(model->parameters());
  const Bytes before = MemoryOf(bench.device).figures().allocated;
  optimizer.step();
  const Bytes state = MemoryOf(bench.device).figures().allocated - before;
  Wait(bench.device);
  const double begin = Seconds();
  for (int i = 0; i < 10; ++i) optimizer.step();
  Wait(bench.device);
  *milliseconds = (Seconds() - begin) * 100;
  return state;
}

void MemoryOfOptimizers(const Bench& bench) {
  std::printf(
      "\nOptimizer's state, GPT of 12 layers\n\n| | MiB | of AdamW's | ms a step "
      "|\n|---|---|---|---|\n");
  double ms = 0;
  const Bytes adam = StateOf<torch::optim::AdamW>(bench, &ms);
  const auto row = [&](const char* what, Bytes state) {
    std::printf("| %s | %.0f | %.1f %% | %.1f |\n", what, Mebibytes(state),
                100 * static_cast<double>(state) / static_cast<double>(adam), ms);
  };
  row("torch::optim::AdamW", adam);
  row("FusedAdamW", StateOf<FusedAdamW>(bench, &ms));
  row("AdamW8bit", StateOf<AdamW8bit>(bench, &ms));
}

struct Trained {
  double loss = 0;
  Bytes peak = 0;
  double milliseconds = 0;
  /// What the trainer expected of a step, in milliseconds; 0 where it chose nothing.
  double expected = 0;
  std::string levers;
};

struct Run {
  std::string job;
  std::int64_t rows = 0;
  /// 0: none.
  Bytes budget = 0;
  /// Nothing is chosen: the whole batch at once, as plain training does it.
  bool plain = false;
  Precision precision = Precision::kFloat32;
  /// Of the U-Net: "b" batch normalization in place of group, "s" separable convolutions. Of all:
  /// "c" channels-last, "p" pieces also with batch normalization, "g" as a CUDA graph.
  std::string variant = "-";
  /// "-": chosen.
  std::string checkpoint = "-";
};

bool Has(const Run& run, char letter) { return run.variant.find(letter) != std::string::npos; }

Trained Train(const Bench& bench, const Run& run) {
  torch::manual_seed(5);
  const auto jobs = Jobs(bench);
  const Job& job = *std::ranges::find(jobs, run.job, &Job::name);
  auto model = job.make();
  if (Has(run, 'b') || Has(run, 's')) {
    model = std::make_shared<UNet>(
        UNetOptions{.width = bench.large() ? 64 : 8,
                    .normalization = Has(run, 'b') ? Normalization::kBatch : Normalization::kGroup,
                    .separable = Has(run, 's')});
  }
  model->to(bench.device);
  if (Has(run, 'c')) UseChannelsLast(*model);
  auto optimizer = AdamWForms(model->parameters(), torch::optim::AdamWOptions(1e-4));
  if (run.plain) optimizer.allowed = {OptimizerForm::kFused};
  TrainerOptions options{.device = bench.device, .precision = run.precision};
  if (run.budget > 0) options.budget = run.budget;
  options.split_batch_norm = Has(run, 'p');
  options.cuda_graph = Has(run, 'g');
  options.weight = [model](const Batch& batch) { return model->Weight(batch); };
  if (run.plain) {
    options.micro_batch = run.rows;
    options.checkpoint = CheckpointPolicy();
    options.offload = false;
  }
  if (run.checkpoint != "-") options.checkpoint = CheckpointPolicy::Parse(run.checkpoint);
  if (!bench.large()) options.offload_options.least = 256;
  Trainer trainer(
      model, optimizer, [model](const Batch& batch) { return model->Loss(batch); }, options);
  Trained result;
  bool graphed = false;
  std::vector<double> times;
  for (int i = 0; i < 8; ++i) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + i));
    const Batch rows = job.batch(run.rows);
    const Batch batch = Has(run, 'c') ? InChannelsLast(rows) : rows;
    Wait(bench.device);
    const double begin = Seconds();
    const StepReport report = trainer.Step(batch);
    // A step returns before the optimizer's kernels have run.
    Wait(bench.device);
    times.push_back((Seconds() - begin) * 1000);
    result.loss = report.loss;
    graphed = report.graphed;
    result.peak = std::max(result.peak, report.memory.peak_reserved);
  }
  std::sort(times.begin(), times.end());
  result.milliseconds = times[times.size() / 2];
  result.expected = 1000 * trainer.expected_seconds().value_or(0);
  result.levers = trainer.levers().ToString();
  if (graphed) result.levers += ", CUDA graph";
  if (trainer.optimizer_form() != OptimizerForm::kFused) {
    result.levers += c10::str(", optimizer ", FormName(*trainer.optimizer_form()));
  }
  return result;
}

/// In a process of its own, as a training job is: what an earlier one left in the allocator would
/// count. Nothing if memory ran out.
std::optional<Trained> TrainAlone(const Bench& bench, const Run& run) {
  const std::string command = c10::str(
      "exec '", bench.program, "' run ", bench.device, " ", run.job, " ", run.rows, " ", run.budget,
      " ", run.plain, " ", PrecisionName(run.precision), " ", run.variant, " ", run.checkpoint);
  std::FILE* const out = popen(command.c_str(), "r");
  TORCH_CHECK(out != nullptr, "cannot run ", command);
  Trained result;
  char levers[2000] = "";
  const int read = std::fscanf(out, "%lf %ld %lf %lf %1999[^\n]", &result.loss, &result.peak,
                               &result.milliseconds, &result.expected, levers);
  const int status = pclose(out);
  if (status != 0 || read != 5) return std::nullopt;
  result.levers = levers;
  return result;
}

int RunOne(const Bench& bench, char** words) {
  const Run run{.job = words[0],
                .rows = std::stol(words[1]),
                .budget = std::stol(words[2]),
                .plain = std::stol(words[3]) != 0,
                .precision = ParsePrecision(words[4]),
                .variant = words[5],
                .checkpoint = words[6]};
  try {
    const Trained result = Train(bench, run);
    std::printf("%.6f %ld %.2f %.2f %s\n", result.loss, result.peak, result.milliseconds,
                result.expected, result.levers.c_str());
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}

/// Where a batch in one piece comes to another loss than plain training: whether it is the levers
/// or what libraries do when they are refused memory.
void CompareWithoutLimit(const Bench& bench, const Job& job, const Trained& plain,
                         const Trained& within) {
  const std::string whole = c10::str("micro-batch ", job.rows, ", checkpoint ");
  if (within.loss == plain.loss || !within.levers.starts_with(whole)) return;
  const std::string rest = within.levers.substr(whole.size());
  const std::string policy = rest.substr(0, rest.find(", "));
  const auto free = TrainAlone(bench, {.job = job.name, .rows = job.rows, .checkpoint = policy});
  if (!free) return;
  std::printf("| %s, the same blocks, no budget | | | %.0f | %.1f | %.6f | %s |\n",
              job.name.c_str(), Mebibytes(free->peak), free->milliseconds, free->loss,
              free->levers.c_str());
}

void Budgets(const Bench& bench) {
  std::printf(
      "\n| model | budget | MiB | peak held, MiB | ms a step, of expected | loss of step 8 | "
      "levers "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const Job& job : Jobs(bench)) {
    const auto plain = TrainAlone(bench, {.job = job.name, .rows = job.rows, .plain = true});
    TORCH_CHECK(plain, job.name, " does not train at all");
    std::printf("| %s, batch %ld | none, plain | | %.0f | %.1f | %.6f | %s |\n", job.name.c_str(),
                job.rows, Mebibytes(plain->peak), plain->milliseconds, plain->loss,
                plain->levers.c_str());
    for (const int percent : {100, 70, 50, 35, 25, 15}) {
      const Bytes budget = plain->peak / 100 * percent;
      const auto within = TrainAlone(bench, {.job = job.name, .rows = job.rows, .budget = budget});
      if (within) {
        std::printf("| %s | %d %% | %.0f | %.0f%s | %.1f%s | %.6f | %s |\n", job.name.c_str(),
                    percent, Mebibytes(budget), Mebibytes(within->peak),
                    within->peak <= budget ? "" : " ABOVE", within->milliseconds,
                    within->expected > 0
                        ? c10::str(" of ", static_cast<std::int64_t>(within->expected)).c_str()
                        : "",
                    within->loss, within->levers.c_str());
      } else {
        std::printf("| %s | %d %% | %.0f | does not fit | | | |\n", job.name.c_str(), percent,
                    Mebibytes(budget));
      }
      if (within) CompareWithoutLimit(bench, job, *plain, *within);
      std::fflush(stdout);
    }
  }
}

using MakeOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
template <class Optimizer>
MakeOptimizer MakeDefault() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_shared<Optimizer>(std::move(parameters));
  };
}

/// The least limit with which a plain loop trains, and the least budget of a Trainer, on a net
/// whose parameters outweigh what it keeps.
void LeastBudgets(const Bench& bench) {
  const std::int64_t width = bench.large() ? 4096 : 512;
  const auto make = [&] {
    torch::nn::Sequential net;
    for (int i = 0; i < 6; ++i) {
      net->push_back(torch::nn::Linear(width, width));
      net->push_back(torch::nn::ReLU());
    }
    net->to(bench.device);
    return net;
  };
  const Batch batch{{torch::randn({8, width}).to(bench.device)}};
  DeviceMemory& memory = MemoryOf(bench.device);
  const auto loss = [](torch::nn::Sequential net, const Batch& rows) {
    return net->forward(rows.tensors[0]).square().mean();
  };
  const auto trains = [&](const MakeOptimizer& optimizer, Bytes limit, bool plain) {
    memory.ReleaseCached();
    try {
      if (plain) {
        memory.SetLimit(limit);
        auto net = make();
        const auto stepped = optimizer(net->parameters());
        for (int i = 0; i < 3; ++i) {
          stepped->zero_grad();
          loss(net, batch).backward();
          stepped->step();
        }
        memory.SetLimit(std::nullopt);
      } else {
        auto net = make();
        Trainer trainer(net.ptr(), optimizer(net->parameters()),
                        [&](const Batch& rows) { return loss(net, rows); },
                        {.device = bench.device, .budget = limit});
        for (int i = 0; i < 3; ++i) trainer.Step(batch);
      }
      return true;
    } catch (const c10::OutOfMemoryError&) {
      memory.SetLimit(std::nullopt);
      return false;
    }
  };
  const auto least = [&](const MakeOptimizer& optimizer, bool plain) {
    Bytes too_little = 0;
    Bytes enough = 12 * 6 * width * width * 4;
    while (enough - too_little > enough / 200) {
      const Bytes middle = too_little + (enough - too_little) / 2;
      (trains(optimizer, middle, plain) ? enough : too_little) = middle;
    }
    return enough;
  };
  std::printf("\n| optimizer | plain loop, MiB | Trainer, MiB | |\n|---|---|---|---|\n");
  const std::pair<const char*, MakeOptimizer> optimizers[] = {
      {"FusedAdamW", MakeDefault<FusedAdamW>()},
      {"torch::optim::AdamW", MakeDefault<torch::optim::AdamW>()},
      {"AdamW8bit", MakeDefault<AdamW8bit>()},
      {"HostAdamW", MakeDefault<HostAdamW>()},
      {"torch::optim::SGD, momentum", [](std::vector<at::Tensor> parameters) {
         return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                                    torch::optim::SGDOptions(0.01).momentum(0.9));
       }}};
  for (const auto& [name, optimizer] : optimizers) {
    const Bytes plain = least(optimizer, true);
    const Bytes trainer = least(optimizer, false);
    std::printf("| %s | %.0f | %.0f | %.3f |\n", name, Mebibytes(plain), Mebibytes(trainer),
                static_cast<double>(trainer) / static_cast<double>(plain));
    std::fflush(stdout);
  }
}

/// The guides' story: a U-Net that runs out at batch 8 trains at 32 within the same budget.
void Story(const Bench& bench) {
  for (const std::string norm : {"-", "b"}) {
    const auto four = TrainAlone(bench, {.job = "unet", .rows = 4, .plain = true, .variant = norm});
    const auto eight =
        TrainAlone(bench, {.job = "unet", .rows = 8, .plain = true, .variant = norm});
    TORCH_CHECK(four && eight, "the U-Net does not train at all");
    const Bytes budget = (four->peak + eight->peak) / 2;
    std::printf(
        "\nU-Net, %s normalization, budget %.0f MiB\n\n| batch | how | peak held, MiB | ms an "
        "image | of "
        "plain | levers |\n|---|---|---|---|---|---|\n",
        norm == "b" ? "batch" : "group", Mebibytes(budget));
    const double base = four->milliseconds / 4;
    const auto row = [&](std::int64_t rows, bool plain, Precision precision,
                         const std::string& variant, const char* how) {
      const auto result = TrainAlone(bench, {.job = "unet",
                                             .rows = rows,
                                             .budget = budget,
                                             .plain = plain,
                                             .precision = precision,
                                             .variant = norm + variant});
      std::printf("| %ld | %s, %s%s | ", rows, plain ? "plain" : "Trainer",
                  std::string(PrecisionName(precision)).c_str(), how);
      if (result) {
        const double each = result->milliseconds / static_cast<double>(rows);
        std::printf("%.0f | %.2f | %.0f %% | %s |\n", Mebibytes(result->peak), each,
                    100 * each / base, result->levers.c_str());
      } else {
        std::printf("runs out of memory | | | |\n");
      }
      std::fflush(stdout);
    };
    const std::string split = norm == "b" ? "p" : "";
    row(4, true, Precision::kFloat32, "", "");
    row(8, true, Precision::kFloat32, "", "");
    row(32, false, Precision::kFloat32, split, "");
    if (norm == "b") row(32, false, Precision::kBfloat16, "", ", one piece");
    row(32, false, Precision::kBfloat16, split, "");
    row(32, false, Precision::kBfloat16, split + "c", ", channels-last");
    if (norm == "b") row(32, false, Precision::kBfloat16, "c", ", channels-last, one piece");
    row(32, false, Precision::kBfloat16, split + "cs",
        ", channels-last, separable (another model)");
  }
}

template <class Optimizer>
MakeOptimizer Make() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_shared<Optimizer>(std::move(parameters));
  };
}

/// The parameters after five steps of a small GPT.
std::vector<at::Tensor> After(const Bench& bench, TrainerOptions options,
                              const MakeOptimizer& optimizer) {
  torch::manual_seed(5);
  const GptOptions sizes{.vocabulary = 1000, .context = 128, .width = 256, .layers = 4, .heads = 4};
  const auto model = std::make_shared<Gpt>(sizes);
  model->to(bench.device);
  options.device = bench.device;
  options.offload_options = {.least = 4096, .keep_last = kMiB, .in_flight = kMiB, .prefetch = kMiB};
  Trainer trainer(
      model, optimizer(model->parameters()),
      [model](const Batch& batch) { return model->Loss(batch); }, options);
  for (int i = 0; i < 5; ++i) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + i));
    trainer.Step(Tokens(bench, sizes, 8));
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model->parameters())
    parameters.push_back(parameter.detach().clone());
  return parameters;
}

/// Whether each mechanism leaves the parameters that plain training leaves, on this device.
void Check(const Bench& bench) {
  const TrainerOptions plain{.micro_batch = 8, .checkpoint = CheckpointPolicy(), .offload = false};
  const auto expected = After(bench, plain, Make<FusedAdamW>());
  std::printf(
      "\n| after 5 steps of a small GPT | largest difference, relative | |\n|---|---|---|\n");
  const auto row = [&](const char* what, const TrainerOptions& options,
                       const MakeOptimizer& optimizer) {
    const auto parameters = After(bench, options, optimizer);
    double worst = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const double scale = expected[i].abs().max().item<double>();
      worst = std::max(worst, (parameters[i] - expected[i]).abs().max().item<double>() / scale);
    }
    std::printf("| %s | %.2e | %s |\n", what, worst, worst == 0 ? "bit for bit" : "");
    std::fflush(stdout);
  };
  TrainerOptions options = plain;
  row("plain, again", options, Make<FusedAdamW>());
  options.checkpoint = CheckpointPolicy::All();
  row("checkpoint all", options, Make<FusedAdamW>());
  options.offload = true;
  row("checkpoint all, offload", options, Make<FusedAdamW>());
  options.checkpoint = CheckpointPolicy();
  row("offload", options, Make<FusedAdamW>());
  options = plain;
  options.micro_batch = 3;
  row("micro-batches of 3", options, Make<FusedAdamW>());
  row("AdamW of LibTorch", plain, Make<torch::optim::AdamW>());
  row("AdamW on the host", plain, Make<HostAdamW>());
  row("AdamW in 8 bits", plain, Make<AdamW8bit>());
}

/// A step launched as a whole against one launched kernel by kernel.
void Graph(const Bench& bench) {
  const GptOptions sizes{.vocabulary = 1000, .context = 64, .width = 256, .layers = 12, .heads = 4};
  torch::manual_seed(5);
  const auto model = std::make_shared<Gpt>(sizes);
  model->to(bench.device);
  const Batch batch = Tokens(bench, sizes, 4);
  const auto step = [&](const Batch& rows) {
    const at::Tensor loss = model->Loss(rows);
    loss.backward();
    return Tensors{loss.detach()};
  };
  const auto time = [&](const auto& run) {
    for (int i = 0; i < 3; ++i) run();
    Wait(bench.device);
    const double begin = Seconds();
    for (int i = 0; i < 50; ++i) run();
    Wait(bench.device);
    return (Seconds() - begin) * 20;
  };
  const double plain = time([&] {
    ClearGradients(*model);
    step(batch);
  });
  const at::Tensor expected = model->parameters()[4].grad().clone();
  ClearGradients(*model);
  GraphedStep graphed(*model, step, batch);
  const double captured = time([&] { graphed.Replay(batch); });
  std::printf(
      "\nGPT of 12 layers, width 256, batch 4 x 64: plain %.2f ms, as a CUDA graph %.2f ms, "
      "gradients %s\n",
      plain, captured,
      torch::equal(expected, model->parameters()[4].grad()) ? "bit for bit" : "differ");
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const char* const usual = torch::cuda::is_available() ? "cuda:0" : "cpu";
  const Bench bench{.program = argv[0], .device = c10::Device(argc > 2 ? argv[2] : usual)};
  if (what == "run" && argc == 10) return RunOne(bench, argv + 3);
  if (what == "budget") {
    Budgets(bench);
  } else if (what == "least") {
    LeastBudgets(bench);
  } else if (what == "story") {
    Story(bench);
  } else if (what == "memory") {
    MemoryOfGpt(bench, Precision::kFloat32);
    MemoryOfGpt(bench, Precision::kBfloat16);
  } else if (what == "optimizers") {
    MemoryOfOptimizers(bench);
  } else if (what == "check") {
    Check(bench);
    CheckGraphs(bench);
    if (bench.large()) Graph(bench);
  } else if (what == "speed") {
    Speed(bench);
  } else {
    std::fprintf(stderr,
                 "usage: train_bench check|memory|optimizers|budget|least|story|speed [DEVICE]\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace plimsoll::train

int main(int argc, char** argv) { return plimsoll::train::Main(argc, argv); }
