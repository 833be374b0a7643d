// The job that guides to CUDA out-of-memory errors begin with: four ranks train a segmentation
// model on images of mixed sizes, and one of them runs out of memory.
//
//   guide_job plain   RANKS DEVICE BUDGET SCALE STEPS [FOLDER]    samples dealt at random, a plain
//   data parallel loop guide_job trainer RANKS DEVICE BUDGET SCALE STEPS [FOLDER]    samples
//   balanced, Trainer within the same budget
//
// SCALE is the side of the smallest image, 320 as in the guide; the largest is twice that. On CUDA
// each rank leaves a snapshot in FOLDER, for `plimsoll explain`.
#include <torch/torch.h>

#include <cinttypes>
#include <cstdio>

#include "train/data/collate.h"
#include "train/data/random.h"
#include "train/data/synthetic.h"
#include "train/gradients/recovery.h"
#include "train/models/unet.h"
#include "train/optimizers/fused_adam.h"
#include "train/parallel/data_parallel/balanced_sampler.h"
#include "train/parallel/ranks/local_launcher.h"
#include "train/trainer/run_log.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train {
namespace {

constexpr std::int64_t kSamples = 512;
constexpr std::int64_t kRowsOfRank = 4;

/// Rectangles in noise, each image of its own size.
class MixedMasks : public Source {
 public:
  explicit MixedMasks(std::int64_t smallest) {
    Random random(7, 0);
    const std::int64_t steps = smallest / 16 + 1;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const auto side = [&] { return smallest + 16 * random.Below(steps); };
      const std::int64_t height = side();
      sides_.emplace_back(height, side());
    }
  }

  std::int64_t size() const override { return kSamples; }
  std::int64_t Length(std::int64_t index) const override {
    const auto& [height, width] = sides_[static_cast<std::size_t>(index)];
    return height * width;
  }
  /// Padded to the largest of them.
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override {
    std::vector<Sample> samples;
    for (const std::int64_t index : indices) {
      const auto& [height, width] = sides_[static_cast<std::size_t>(index)];
      const auto one =
          SyntheticMasks({.size = kSamples, .height = height, .width = width, .classes = 2});
      Sample& sample = samples.emplace_back();
      for (const at::Tensor& tensor : one->Get({&index, 1}, where).tensors)
        sample.push_back(tensor.select(0, 0));
    }
    return Collate(samples, {}, where);
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> sides_;
};

struct Job {
  bool plain = true;
  c10::Device device = c10::kCPU;
  Bytes budget = 0;
  std::int64_t smallest = 320;
  int steps = 0;
  std::string folder;
};

/// As a DistributedSampler does: shuffled, every so manyth for each rank.
std::vector<std::int64_t> AtRandom(int step, const Ranks& ranks) {
  std::vector<std::int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  const std::int64_t steps = kSamples / (kRowsOfRank * ranks.size());
  Random random(3, static_cast<std::uint64_t>(step / steps));
  Shuffle(all, random);
  std::vector<std::int64_t> mine;
  for (std::int64_t i = 0; i < kRowsOfRank; ++i) {
    mine.push_back(all[static_cast<std::size_t>((step % steps * kRowsOfRank + i) * ranks.size() +
                                                ranks.rank())]);
  }
  return mine;
}

void Say(const Ranks& ranks, int steps, double loss, const Budget& budget, Bytes limit,
         const std::string& how) {
  std::printf("rank %d: %d steps, loss %.4f, peak reserved %s of %s%s\n", ranks.rank(), steps, loss,
              FormatBytes(budget.figures().peak_reserved).c_str(), FormatBytes(limit).c_str(),
              how.c_str());
}

void TrainPlainly(const Job& job, UNet& model, Ranks& ranks, const MixedMasks& source) {
  const Budget budget(job.device, job.budget);
  DataParallel parallel(model, ranks);
  FusedAdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-4));
  int step = 0;
  double loss = 0;
  try {
    for (; step < job.steps; ++step) {
      ranks.Doing(c10::str("step ", step));
      const Batch batch = source.Get(AtRandom(step, ranks), {}).To(job.device);
      optimizer.zero_grad(/*set_to_none=*/false);
      loss = parallel
                 .AccumulateGradients([&](const Batch& rows) { return model.Loss(rows); }, batch,
                                      {.rows = kRowsOfRank})
                 .item<double>();
      optimizer.step();
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    Say(ranks, step, loss, budget, job.budget,
        c10::str(", ended: ", text.substr(0, text.find('\n'))));
    throw;
  }
  Say(ranks, step, loss, budget, job.budget, "");
}

void TrainWithin(const Job& job, const std::shared_ptr<UNet>& model,
                 const std::shared_ptr<Ranks>& ranks, const MixedMasks& source) {
  BalancedSampler sampler(source, ranks->size(), {.batch = kRowsOfRank, .padded = true, .seed = 3});
  TrainerOptions options{.device = job.device, .budget = job.budget, .ranks = ranks};
  Trainer trainer(
      model, AdamWForms(model->parameters(), torch::optim::AdamWOptions(1e-4)),
      [model](const Batch& rows) { return model->Loss(rows); }, options);
  StepReport report;
  int retries = 0;
  std::set<std::string> levers;
  for (int step = 0; step < job.steps; ++step) {
    const auto mine = sampler.Next()[static_cast<std::size_t>(ranks->rank())];
    report = trainer.Step(source.Get(mine, {}).To(job.device));
    retries += report.retries;
    levers.insert(report.levers.ToString());
  }
  std::string how = c10::str(", ", retries, " retries");
  for (const std::string& one : levers) how += "; " + one;
  Say(*ranks, job.steps, report.loss, trainer.budget(), job.budget, how);
}

int Run(const Job& given) {
  Job job = given;
  const Launch launch = LaunchFromEnvironment();
  if (job.device.is_cuda()) job.device = c10::Device(c10::kCUDA, 0);
  const auto ranks = std::make_shared<Ranks>(
      launch, RanksOptions{.device = job.device,
                           .transport = launch.size > 1 ? Transport::kGloo : Transport::kOfDevice,
                           .time_limit = std::chrono::seconds(60)});
  const bool snapshot = job.device.is_cuda() && !job.folder.empty();
  if (snapshot) RecordMemory(job.device);
  torch::manual_seed(1);
  const auto model = std::make_shared<UNet>(UNetOptions{.width = job.smallest >= 256 ? 64 : 8});
  model->to(job.device);
  const MixedMasks source(job.smallest);
  int code = 0;
  try {
    if (job.plain) {
      TrainPlainly(job, *model, *ranks, source);
    } else {
      TrainWithin(job, model, ranks, source);
    }
  } catch (const std::exception& error) {
    code = IsOutOfMemory(error) ? 3 : 4;
  }
  if (snapshot) WriteSnapshot(c10::str(job.folder, "/rank", launch.rank, ".pickle"));
  return code;
}

}  // namespace
}  // namespace plimsoll::train

int main(int argc, char** argv) {
  using namespace plimsoll::train;
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() < 7) {
    std::fprintf(stderr,
                 "usage: guide_job plain|trainer RANKS DEVICE BUDGET SCALE STEPS [FOLDER]\n");
    return 2;
  }
  const auto budget = plimsoll::ParseBytes(words[4]);
  if (!budget.ok()) {
    std::fprintf(stderr, "'%s' is not a size such as 6GiB\n", words[4].c_str());
    return 2;
  }
  const Job job{.plain = words[1] == "plain",
                .device = c10::Device(words[3]),
                .budget = *budget,
                .smallest = std::stoll(words[5]),
                .steps = std::stoi(words[6]),
                .folder = words.size() > 7 ? words[7] : ""};
  const int ranks = std::stoi(words[2]);
  if (ranks > 1 && std::getenv("RANK") == nullptr) return RunOnThisMachine(ranks, words, 90);
  return Run(job);
}
