#include "train/trainer/trainer.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "train/budget/cpu_allocator.h"
#include "train/common/nightly_for_tests.h"
#include "train/models/model.h"
#include "train/optimizers/fused_adam.h"

namespace plimsoll::train::trainer_test {
namespace {

/// The same kernel every time, in all tests of this binary. oneDNN, which torch uses on ARM for
/// matrix products and convolutions, catches a lack of memory by itself and takes another kernel,
/// which rounds differently: then nothing is the same bit for bit, for a reason that is not ours.
class OneKernel : public testing::Environment {
 public:
  void SetUp() override { at::globalContext().setUserEnabledMkldnn(false); }
};
const testing::Environment* const kOneKernel = testing::AddGlobalTestEnvironment(new OneKernel);

struct Job {
  std::string name;
  ModelSizes sizes;
  std::int64_t rows;
};

/// Else gtest prints its bytes.
void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

Job Gpt() {
  return {"gpt", {.width = 16, .layers = 4, .vocabulary = 61, .context = 24, .heads = 2}, 8};
}
Job Unet() { return {"unet", {.width = 4, .classes = 3, .in_channels = 3}, 8}; }
/// With a batch that outweighs parameters and optimizer, as it does where people run out.
Job WithRows(Job job, std::int64_t rows) {
  job.rows = rows;
  return job;
}

Batch BatchOf(const Job& job, std::int64_t number) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + number));
  if (job.name == "gpt") {
    const at::Tensor text = torch::randint(0, job.sizes.vocabulary,
                                           {job.rows, job.sizes.context + 1}, generator, at::kLong);
    return {{text.slice(1, 0, job.sizes.context).clone(), text.slice(1, 1).clone()}};
  }
  const at::Tensor images = torch::randn({job.rows, 3, 32, 32}, generator, torch::kFloat);
  return {{images, torch::randint(0, 3, {job.rows, 32, 32}, generator, at::kLong)}};
}

/// A model with its optimizer and trainer, the same every time.
struct Training {
  explicit Training(const Job& training, TrainerOptions options = {}) : job(training) {
    torch::manual_seed(11);
    model = MakeModel(job.name, job.sizes);
    optimizer = std::make_shared<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto loss = [this](const Batch& rows) { return model->Loss(rows); };
    options.weight = [this](const Batch& rows) { return model->Weight(rows); };
    trainer = std::make_unique<Trainer>(model, optimizer, loss, options);
  }

  std::vector<double> Run(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      const StepReport report = trainer->Step(BatchOf(job, trainer->steps()));
      losses.push_back(report.loss);
      peak = std::max(peak, report.memory.peak_allocated);
    }
    return losses;
  }

  Job job;
  std::shared_ptr<TrainModel> model;
  std::shared_ptr<FusedAdamW> optimizer;
  std::unique_ptr<Trainer> trainer;
  Bytes peak = 0;
};

/// The training that a LibTorch user writes today.
struct PlainResult {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
  Bytes peak = 0;
};
PlainResult PlainTraining(const Job& job, int steps) {
  torch::manual_seed(11);
  const auto model = MakeModel(job.name, job.sizes);
  FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  DeviceMemory& memory = MemoryOf(c10::kCPU);
  memory.ResetPeaks();
  PlainResult result;
  for (int i = 0; i < steps; ++i) {
    const Batch batch = BatchOf(job, i);
    optimizer.zero_grad();
    const at::Tensor loss = model->Loss(batch);
    loss.backward();
    optimizer.step();
    result.losses.push_back(loss.item<double>());
  }
  result.peak = memory.figures().peak_allocated;
  for (const at::Tensor& parameter : model->parameters())
    result.parameters.push_back(parameter.detach().clone());
  return result;
}

double WorstDifference(const torch::nn::Module& model, const std::vector<at::Tensor>& expected) {
  double worst = 0;
  const auto parameters = model.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double scale = expected[i].abs().max().item<double>();
    worst = std::max(
        worst, (parameters[i] - expected[i]).abs().max().item<double>() / std::max(scale, 1e-3));
  }
  return worst;
}

constexpr OffloadOptions kSmallTensorsToo{
    .least = 256, .keep_last = 0, .in_flight = 0, .prefetch = 0};

class EveryModel : public testing::TestWithParam<Job> {};
INSTANTIATE_TEST_SUITE_P(Trainer, EveryModel, testing::Values(Gpt(), Unet()),
                         [](const auto& chosen) { return chosen.param.name; });

TEST_P(EveryModel, TrainsAsPlainTrainingDoes) {
  const int steps = Nightly(20, 6);
  const PlainResult plain = PlainTraining(GetParam(), steps);
  {
    Training whole(GetParam());
    EXPECT_EQ(whole.Run(steps), plain.losses);
    EXPECT_EQ(WorstDifference(*whole.model, plain.parameters), 0);
  }
  for (const char* policy : {"all", "sqrt", "every:2", "plan:1"}) {
    Training checkpointed(GetParam(), {.checkpoint = CheckpointPolicy::Parse(policy)});
    EXPECT_EQ(checkpointed.Run(steps), plain.losses) << policy;
    EXPECT_EQ(WorstDifference(*checkpointed.model, plain.parameters), 0) << policy;
  }
  {
    Training offloaded(GetParam(), {.offload = true, .offload_options = kSmallTensorsToo});
    EXPECT_EQ(offloaded.Run(steps), plain.losses);
    EXPECT_EQ(WorstDifference(*offloaded.model, plain.parameters), 0);
  }
}

TEST_P(EveryModel, TrainsInPiecesAsInOne) {
  // With SGD, and slowly: Adam divides by the size of the gradient, which makes rounding of small
  // ones large, and where a net changes quickly it grows from step to step.
  const auto train = [&](std::int64_t micro_batch) {
    torch::manual_seed(11);
    const auto model = MakeModel(GetParam().name, GetParam().sizes);
    const auto optimizer = std::make_shared<FusedSgd>(model->parameters(),
                                                      torch::optim::SGDOptions(1e-3).momentum(0.9));
    const auto loss = [model](const Batch& rows) { return model->Loss(rows); };
    Trainer trainer(model, optimizer, loss, {.micro_batch = micro_batch});
    double last = 0;
    for (int i = 0; i < Nightly(20, 8); ++i) last = trainer.Step(BatchOf(GetParam(), i)).loss;
    return std::pair(last, model);
  };
  const auto [whole_loss, whole] = train(8);
  const auto [loss, model] = train(3);
  EXPECT_NEAR(loss, whole_loss, 1e-6 * whole_loss);
  std::vector<at::Tensor> expected;
  for (const at::Tensor& parameter : whole->parameters()) expected.push_back(parameter.detach());
  const double difference = WorstDifference(*model, expected);
  std::printf("%s in pieces of 3: %.1e\n", GetParam().name.c_str(), difference);
  EXPECT_LT(difference, 1e-6);
}

TEST_P(EveryModel, TrainsWithinAnyBudget) {
  const int steps = 4;
  const Job job = WithRows(GetParam(), 32);
  const PlainResult plain = PlainTraining(job, steps);
  const Bytes base = MemoryOf(c10::kCPU).figures().allocated;
  std::vector<int> percents = {100, 70, 50, 35};
  // On ARM torch's own convolution unfolds an image into columns: the U-Net trains within 32 %
  // there and not within 30 %, and nothing that the trainer can change makes those columns smaller.
#if defined(__x86_64__)
  percents.push_back(25);
#endif
  for (const int percent : percents) {
    const Bytes budget = base + (plain.peak - base) * percent / 100;
    Training training(job, {.budget = budget, .offload_options = kSmallTensorsToo});
    const auto losses = training.Run(steps);
    EXPECT_LE(training.peak, budget) << percent;
    for (int i = 0; i < steps; ++i) {
      EXPECT_NEAR(losses[i], plain.losses[i], 2e-5 * plain.losses[i]) << percent;
    }
    std::printf("%s within %d %%: %s\n", job.name.c_str(), percent,
                training.trainer->levers().ToString().c_str());
  }
}

TEST_P(EveryModel, SurvivesRunningOutAtEveryAllocation) {
  CpuAllocator& allocator = CpuAllocator::Installed();
  const auto train = [&](std::optional<std::int64_t> failing) {
    Training training(GetParam());
    training.Run(1);
    const Batch batch = BatchOf(GetParam(), 1);
    if (failing) allocator.FailAt(allocator.requests() + *failing);
    const StepReport report = training.trainer->Step(batch);
    allocator.FailAt(-1);
    EXPECT_EQ(report.retries, failing ? 1 : 0);
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : training.model->parameters())
      parameters.push_back(parameter.detach().clone());
    return std::pair(report.loss, parameters);
  };
  Training counted(GetParam());
  counted.Run(1);
  const Batch batch = BatchOf(GetParam(), 1);
  const std::int64_t before = allocator.requests();
  counted.trainer->Step(batch);
  const std::int64_t requests = allocator.requests() - before;
  const auto [loss, parameters] = train(std::nullopt);
  // All of them take minutes.
  const std::int64_t stride =
      std::getenv("PLIMSOLL_EVERY_ALLOCATION") != nullptr ? 1 : Nightly(7, 29);
  for (std::int64_t i = 0; i < requests; i += stride) {
    const auto [again, moved] = train(i);
    EXPECT_EQ(again, loss) << i;
    for (std::size_t p = 0; p < moved.size(); ++p)
      ASSERT_TRUE(torch::equal(moved[p], parameters[p])) << i << " " << p;
  }
}

TEST_P(EveryModel, ResumesBitForBit) {
  const auto path =
      std::filesystem::temp_directory_path() / ("plimsoll_resume_" + std::to_string(getpid()));
  Training whole(GetParam());
  const auto losses = whole.Run(6);
  {
    Training first(GetParam());
    first.Run(3);
    first.trainer->Save(path, "three");
  }
  Training second(GetParam());
  torch::manual_seed(99);
  EXPECT_EQ(second.trainer->Load(path), "three");
  EXPECT_EQ(second.trainer->steps(), 3);
  EXPECT_EQ(second.Run(3), std::vector<double>(losses.begin() + 3, losses.end()));
  for (std::size_t i = 0; i < whole.model->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(whole.model->parameters()[i], second.model->parameters()[i]));
  }
  std::filesystem::remove(path);
}

TEST(Trainer, GivesWayAndTriesAgainLater) {
  Training training(Gpt());
  training.Run(1);
  const Levers whole = training.trainer->levers();
  EXPECT_EQ(whole.micro_batch, 8);
  {
    // Another program takes most of the memory for a while.
    DeviceMemory& memory = MemoryOf(c10::kCPU);
    const Bytes before = memory.figures().allocated;
    memory.SetLimit(before + (training.peak - before) / 2);
    const StepReport report = training.trainer->Step(BatchOf(Gpt(), 1));
    EXPECT_GE(report.retries, 2);
    EXPECT_NE(report.levers, whole);
    memory.SetLimit(std::nullopt);
  }
  for (int i = 0; i < 200 && training.trainer->levers() != whole; ++i) training.Run(1);
  EXPECT_EQ(training.trainer->levers(), whole);
  // It stays so.
  training.Run(Nightly(200, 10));
  EXPECT_EQ(training.trainer->levers(), whole);
}

TEST(Trainer, TakesABatchFromTheHost) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  std::vector<double> losses;
  std::vector<Bytes> peaks;
  for (const bool on_host : {true, false}) {
    torch::manual_seed(1);
    const auto model = std::make_shared<torch::nn::LinearImpl>(1024, 1);
    model->to(at::kCUDA);
    Trainer trainer(
        model, std::make_shared<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(0.01)),
        [model](const Batch& rows) { return model->forward(rows.tensors[0]).square().mean(); },
        {.device = at::kCUDA, .micro_batch = 64});
    const Batch batch{{torch::ones({4096, 1024})}};
    const StepReport report = trainer.Step(on_host ? batch : batch.To(at::kCUDA));
    losses.push_back(report.loss);
    peaks.push_back(report.memory.peak_allocated);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_LT(peaks[0], peaks[1]) << "a piece at a time";
}

TEST(Trainer, SaysWhenNothingFits) {
  Training training(Gpt());
  MemoryOf(c10::kCPU).SetLimit(MemoryOf(c10::kCPU).figures().allocated + 10 * kKiB);
  EXPECT_THROW(training.Run(1), c10::OutOfMemoryError);
  MemoryOf(c10::kCPU).SetLimit(std::nullopt);
  // And nothing is broken.
  EXPECT_EQ(training.Run(2), Training(Gpt()).Run(2));
}

TEST(Trainer, KeepsBatchesTogetherForBatchNormalization) {
  Job job = WithRows(Unet(), 32);
  job.sizes.normalization = Normalization::kBatch;
  const PlainResult plain = PlainTraining(job, 2);
  const Bytes base = MemoryOf(c10::kCPU).figures().allocated;
  Training training(
      job, {.budget = base + (plain.peak - base) * 7 / 10, .offload_options = kSmallTensorsToo});
  EXPECT_EQ(training.Run(2), plain.losses);
  EXPECT_EQ(training.trainer->levers().micro_batch, job.rows);
}

TEST(Trainer, ScalesLossesInHalfPrecision) {
  Training training(Gpt(), {.precision = Precision::kFloat16, .clip_norm = 1});
  const auto losses = training.Run(12);
  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace
}  // namespace plimsoll::train::trainer_test
