// Which modules to checkpoint: the planner's choice against every block, `sqrt`, the fewest first
// blocks, and all sets of blocks where these are at most 16. May take minutes.
//
//   checkpoint_choice STEP BATCH [PERCENT...]     of the peak without checkpointing; 70 50 35
//   checkpoint_choice --measured STEPS RUNS.jsonl predicted against measured, a run a line:
//     {"id", "file", "batch", "modules": [...], "peak_allocated", "peak_reserved", "ms"}
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "files/input.h"
#include "job/answer/predict.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "job/transforms/checkpoint.h"
#include "plan/checkpoint_model.h"
#include "recompute/checkpoint_choice.h"

namespace plimsoll {
namespace {

constexpr double kMiB = 1 << 20;
/// Sets of more blocks are too many to go through.
constexpr std::size_t kMostBlocks = 16;

Job Read(const std::string& name) {
  Result<Job> job = ReadJob(*Input::Open(name));
  if (!job) {
    fmt::print(stderr, "{}\n", job.error().ToLine());
    std::exit(2);
  }
  return CopyOf(*job, 0);
}

CheckpointSegments Singly(const std::vector<std::string>& modules) {
  CheckpointSegments segments;
  for (const std::string& module : modules) segments.push_back({.modules = {module}});
  return segments;
}

double Since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class CheckpointedJob {
 public:
  CheckpointedJob(const std::string& file, std::int64_t batch) : job_(Read(file)), batch_(batch) {}

  Prediction With(const CheckpointSegments& segments) {
    ++replays;
    Job job = CopyOf(job_, 0);
    job.variants[0] = AddCheckpointing(job, job.variants[0], segments);
    return *Predict(job, gpu_,
                    {.batch = batch_,
                     .torch = TorchVersion{2, 11},
                     .calibration = Calibration::BuiltIn("H200"),
                     .limit = limit});
  }
  CheckpointScore Score(const CheckpointSegments& segments) {
    const auto begin = std::chrono::steady_clock::now();
    const Prediction p = With(segments);
    seconds += Since(begin);
    return {.fits = p.trial.surely_fits,
            .high = p.trial.needs.reserved.high,
            .room = p.trial.room,
            .us = p.trial.step_us};
  }
  CheckpointModel Model() const {
    return ModelCheckpointing(job_, job_.variants[0], gpu_,
                              {.batch = batch_,
                               .torch = TorchVersion{2, 11},
                               .calibration = Calibration::BuiltIn("H200").get()});
  }
  std::vector<std::string> Blocks() const { return CheckpointBlocks(job_, job_.variants[0]); }

  std::optional<Bytes> limit = {};
  int replays = 0;
  double seconds = 0;

 private:
  Job job_;
  std::int64_t batch_;
  Gpu gpu_ = *FindGpu("H200");
};

void Print(const char* what, const CheckpointScore& score, int replays, const std::string& more) {
  fmt::print("  {:12} {:>9.1f} MiB {:>8.2f} ms  {:4} {:>6} replays  {}\n", what,
             double(score.high) / kMiB, score.us / 1e3, score.fits ? "fits" : "-", replays, more);
}

/// In order of the time that they add, so that the first that fits is the best. Sets in which more
/// is alive than there is room cannot fit, and are not replayed.
void Exhaustive(CheckpointedJob& job, const CheckpointModel& all, Bytes room) {
  const std::vector<std::string> names = job.Blocks();
  const std::set<std::string> blocks(names.begin(), names.end());
  CheckpointModel model{.plain = all.plain, .blocks = {}};
  for (const CheckpointBlock& block : all.blocks) {
    if (blocks.contains(block.module)) model.blocks.push_back(block);
  }
  if (model.blocks.size() > kMostBlocks) return;
  const CheckpointSets sets(model);
  std::vector<std::pair<double, BlockSet>> order;
  for (std::size_t bits = 0; bits < std::size_t{1} << model.blocks.size(); ++bits) {
    BlockSet set;
    for (std::size_t i = 0; i < model.blocks.size(); ++i) {
      if ((bits >> i) & 1) set.push_back(i);
    }
    if (sets.PeakOf(set) <= room) order.emplace_back(sets.TimeOf(set), std::move(set));
  }
  std::sort(order.begin(), order.end());
  std::optional<CheckpointScore> best;
  double enough = 0;
  std::vector<std::string> best_names;
  job.replays = 0;
  for (const auto& [time, set] : order) {
    if (best && time > enough) break;
    std::vector<std::string> modules;
    for (const std::size_t i : set) modules.push_back(model.blocks[i].module);
    const CheckpointScore score = job.Score(Singly(modules));
    if (!score.fits || (best && score.us >= best->us)) continue;
    if (!best) enough = time * 1.02;
    best = score;
    best_names = modules;
  }
  if (best) {
    Print("all sets", *best, job.replays, fmt::format("{}", fmt::join(best_names, " ")));
  } else {
    fmt::print("  all sets     none of {} fits ({} replays)\n",
               std::size_t{1} << model.blocks.size(), job.replays);
  }
}

void Compare(CheckpointedJob& job, Bytes plain_peak, int percent) {
  job.limit = plain_peak / 100 * percent;
  const CheckpointScore plain = job.Score({});
  fmt::print("{} %: {:.1f} MiB\n", percent, double(*job.limit) / kMiB);
  const auto begin = std::chrono::steady_clock::now();
  const CheckpointModel model = job.Model();
  job.replays = 0;
  job.seconds = 0;
  const auto scored = [&](const std::vector<std::string>& modules) {
    return Result<CheckpointScore>(job.Score(Singly(modules)));
  };
  const Result<CheckpointChoice> ours = BestCheckpoints(CheckpointSets(model), plain, scored);
  const double seconds = Since(begin);
  Print("chosen", ours->score, job.replays,
        fmt::format("{:.2f} s, {:.2f} of them replays: {}", seconds, job.seconds,
                    fmt::join(ours->modules, " ")));
  const std::vector<std::string> blocks = job.Blocks();
  for (const char* rule : {"all", "sqrt"}) {
    Print(rule, job.Score(*ResolveCheckpointing(*ParseCheckpointing(rule), blocks)), 1, "");
  }
  for (std::size_t first = 1; first <= blocks.size(); ++first) {
    const std::vector<std::string> some(blocks.begin(), blocks.begin() + std::ptrdiff_t(first));
    const CheckpointScore score = job.Score(Singly(some));
    if (!score.fits) continue;
    Print("first few", score, static_cast<int>(first), fmt::format("{} blocks", first));
    break;
  }
  Exhaustive(job, model, plain.room);
}

int Measured(const std::string& steps, const char* runs) {
  std::ifstream file(runs);
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    CheckpointedJob job(fmt::format("{}/{}.step.json.gz", steps, std::string(row["file"])),
                        row["batch"]);
    const Prediction p = job.With(Singly(row["modules"]));
    const auto off = [&](double ours, const char* key) {
      return 100 * (ours / double(row[key]) - 1);
    };
    fmt::print("{:28} allocated {:+8.3f} %  reserved {:+8.3f} %  time {:+6.1f} %\n",
               std::string(row["id"]), off(double(p.trial.needs.allocated.best), "peak_allocated"),
               off(double(p.trial.needs.reserved.best), "peak_reserved"),
               off(p.trial.step_us / 1e3, "ms"));
  }
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--measured") return Measured(argv[2], argv[3]);
  if (argc < 3) return 2;
  CheckpointedJob job(argv[1], std::atoll(argv[2]));
  std::vector<int> percents = {70, 50, 35};
  if (argc > 3) percents.clear();
  for (int i = 3; i < argc; ++i) percents.push_back(std::atoi(argv[i]));
  const Prediction plain = job.With({});
  fmt::print("plain: {:.1f} MiB, {:.2f} ms\n", double(plain.trial.needs.reserved.high) / kMiB,
             plain.trial.step_us / 1e3);
  for (const int percent : percents) Compare(job, plain.trial.needs.reserved.best, percent);
  return 0;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) { return plimsoll::Main(argc, argv); }
