// Captured steps against what PyTorch measured of the same jobs on an H200: tests/data/steps.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/nightly_for_tests.h"
#include "job/answer/earlier_frees.h"
#include "job/answer/max_batch.h"
#include "job/answer/predict.h"
#include "job/answer/prediction_invariants.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "job/transforms/block_offload.h"
#include "job/transforms/checkpoint.h"
#include "job/transforms/tensors_of_call.h"
#include "job/trial/trial.h"
#include "plan/choice_for_tests.h"

namespace plimsoll::predict_test {

const std::filesystem::path kSteps = std::filesystem::path(PLIMSOLL_TEST_DATA) / "steps";

/// One file serves every batch: "gpt2_b8_adamw_fp32" is gpt2_adamw_fp32.step.json.gz at 8.
Result<Job> ReadIt(const nlohmann::json& row) {
  std::string name = row["id"];
  const std::string batch = "_b" + std::to_string(row["batch"].get<int>()) + "_";
  name.replace(name.find(batch), batch.size(), "_");
  const Result<Input> input = Input::Open((kSteps / (name + ".step.json.gz")).string());
  return input ? ReadJob(*input) : Result<Job>(input.error());
}

double ErrorInPercent(Bytes predicted, Bytes measured) {
  return 100 * std::abs(double(predicted) / double(measured) - 1);
}

TEST(MeasuredPredict, PeaksAreThoseOfTheRealRuns) {
  std::ifstream file(kSteps / "measured.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_EQ(rows.size(), 6u);
  const Result<Gpu> gpu = FindGpu("H200");
  ASSERT_TRUE(gpu.ok());
  for (const nlohmann::json& row : rows) {
    SCOPED_TRACE(row["id"].get<std::string>());
    const Result<Job> job = ReadIt(row);
    ASSERT_TRUE(job.ok()) << job.error().ToLine();
    const Result<Prediction> p = Predict(*job, *gpu,
                                         {.batch = row["batch"],
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    EXPECT_LE(ErrorInPercent(p->trial.needs.allocated.best, row["peak_allocated"]), 0.1);
    EXPECT_LE(ErrorInPercent(p->trial.needs.reserved.best, row["peak_reserved"]), 0.3);
    EXPECT_GE(p->trial.needs.reserved.high, row["peak_reserved"].get<Bytes>());
    EXPECT_TRUE(p->trial.fits);
    EXPECT_TRUE(p->assumptions.empty()) << p->assumptions.front();
  }
}

/// From the capture of the job without the change.
TEST(MeasuredPredict, ChangesAreThoseOfTheRealRuns) {
  std::ifstream file(kSteps / "changed.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  for (const nlohmann::json& row : rows) {
    SCOPED_TRACE(row["id"].get<std::string>());
    const std::string name = row["file"];
    Result<Job> job = ReadJob(*Input::Open((kSteps / (name + ".step.json.gz")).string()));
    ASSERT_TRUE(job.ok()) << job.error().ToLine();
    Choice choice;
    choice = choice.With("accumulation", MicroBatchesValue(row["accumulate"].get<int>()));
    if (row["checkpoint"].is_string()) {
      choice = WithSettings(choice, {"checkpointing=" + row["checkpoint"].get<std::string>()});
    }
    ASSERT_EQ(Rewrite(*job, choice), std::nullopt);
    const Result<Prediction> p = Predict(*job, *FindGpu("H200"),
                                         {.batch = row["batch"],
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    EXPECT_LE(ErrorInPercent(p->trial.needs.allocated.best, row["peak_allocated"]), 0.1);
    EXPECT_LE(ErrorInPercent(p->trial.needs.reserved.best, row["peak_reserved"]), 2);
  }
}

/// Sets of modules, large and small, and not only members of lists: from the capture without.
TEST(MeasuredPredict, CheckpointedModulesAreThoseOfTheRealRuns) {
  std::ifstream file(kSteps / "checkpointed" / "runs.json");
  for (const nlohmann::json& row : nlohmann::json::parse(file)) {
    SCOPED_TRACE(row["id"].get<std::string>());
    const std::string name = row["file"];
    Result<Job> job = ReadJob(*Input::Open((kSteps / (name + ".step.json.gz")).string()));
    ASSERT_TRUE(job.ok()) << job.error().ToLine();
    CheckpointSegments segments;
    for (const nlohmann::json& module : row["modules"]) {
      segments.push_back({.modules = {module.get<std::string>()}});
    }
    job->variants[0] = AddCheckpointing(*job, job->variants[0], segments);
    const Result<Prediction> p = Predict(*job, *FindGpu("H200"),
                                         {.batch = row["batch"],
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    EXPECT_LE(ErrorInPercent(p->trial.needs.allocated.best, row["peak_allocated"]), 0.2);
    EXPECT_LE(ErrorInPercent(p->trial.needs.reserved.best, row["peak_reserved"]), 2);
  }
}

/// What must hold of any step: storages are made once, used and freed while they are there. Under
/// FSDP the optimizer's calls still name the whole gradients, which have become shards.
std::vector<std::string> FaultsOf(const Job& job, const Variant& variant, bool sharded) {
  std::vector<std::string> faults;
  std::vector<char> alive(variant.storages, 0);
  std::vector<char> made(variant.storages, 0);
  for (const ModelTensor& tensor : variant.model_tensors) alive[tensor.storage] = 1;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kFree) {
      if (!alive[event.index]) faults.push_back(fmt::format("free of {}", event.index));
      alive[event.index] = 0;
    }
    if (event.kind != JobEvent::Kind::kCall) continue;
    CallRecord call = variant.calls[event.index];
    const std::string_view op = job.strings[call.op];
    ForEachArgument(call, [&](const TensorUse& tensor) {
      if (!sharded && tensor.storage != kElsewhere && !alive[tensor.storage]) {
        faults.push_back(fmt::format("{} reads {}", op, tensor.storage));
      }
    });
    for (const NewStorage& fresh : call.fresh) {
      if (made[fresh.storage]) faults.push_back(fmt::format("{} makes {}", op, fresh.storage));
      made[fresh.storage] = alive[fresh.storage] = 1;
    }
  }
  return faults;
}

TEST(MeasuredPredict, ChangedStepsMakeSense) {
  const Choice all[] = {
      {},
      WithSettings({}, {"checkpointing=all"}),
      WithSettings({}, {"checkpointing=sqrt"}),
      WithSettings({}, {"checkpointing=every:2", "accumulation=3"}),
      WithSettings({}, {"accumulation=4"}),
      WithSettings({}, {"accumulation=2", "optimizer=adamw:fused"}),
      WithSettings({}, {"checkpointing=all", "parallel=ddp"}),
      WithSettings({}, {"checkpointing=all", "accumulation=2", "parallel=fsdp:4"}),
  };
  std::size_t tried = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kSteps)) {
    if (entry.path().extension() != ".gz") continue;
    for (const Choice& choice : all) {
      if (!IsWorthATry(tried++ % 7))
        continue;  // 7, so that every file and every choice has its turn
      Result<Job> job = ReadJob(*Input::Open(entry.path().string()));
      ASSERT_TRUE(job.ok());
      if (const std::optional<Error> error = Rewrite(*job, choice)) {
        const bool trains_nothing = !Trains(job->variants.front());
        EXPECT_TRUE(trains_nothing || error->message.find("no blocks") != std::string::npos)
            << error->ToLine();
        continue;
      }
      for (const Variant& variant : job->variants) {
        const std::vector<std::string> faults =
            FaultsOf(*job, variant, choice.TextOf("parallel").starts_with("fsdp"));
        EXPECT_TRUE(faults.empty()) << entry.path() << " " << choice.TextOf("checkpointing") << " "
                                    << MicroBatchesOf(*job, choice) << ": " << faults.size()
                                    << " faults, the first: " << faults.front();
      }
    }
  }
}

/// The operators that a module calls.
std::set<std::string> OpsOf(const Job& job, const std::string& module) {
  std::set<std::string> ops;
  for (const CallRecord& call : job.variants[0].calls) {
    if (IsPartOf(job.strings[call.module], module)) ops.emplace(job.strings[call.op]);
  }
  return ops;
}

/// The innermost modules that can be wrapped, and each one alone, also with one call of it kept.
TEST(MeasuredPredict, AnyModuleCanBeCheckpointed) {
  for (const auto& entry : std::filesystem::directory_iterator(kSteps)) {
    if (entry.path().extension() != ".gz") continue;
    const Result<Job> read = ReadJob(*Input::Open(entry.path().string()));
    ASSERT_TRUE(read.ok());
    const std::vector<std::string> modules = CheckpointModules(*read, read->variants[0]);
    std::vector<CheckpointSegments> tried(1);
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const bool innermost = i + 1 == modules.size() || !IsPartOf(modules[i + 1], modules[i]);
      if (innermost) tried.front().push_back({.modules = {modules[i]}});
      if (i % 7 != 0) continue;
      tried.push_back({{.modules = {modules[i]}}});
      if (i % 21 != 0) continue;
      for (const std::string& op : OpsOf(*read, modules[i])) {
        const CheckpointSegment kept{.modules = {modules[i]}, .kept = {{.op = op, .nth = 0}}};
        if (!CannotKeep(*read, read->variants[0], {kept})) tried.push_back({kept});
      }
    }
    for (const CheckpointSegments& segments : tried) {
      if (segments.empty()) continue;
      Job job = CopyOf(*read, 0);
      const Variant changed = AddCheckpointing(job, job.variants[0], segments);
      const std::vector<std::string> faults = FaultsOf(job, changed, false);
      EXPECT_TRUE(faults.empty()) << entry.path() << " " << segments.front().Text() << ": "
                                  << faults.size() << " faults, the first: " << faults.front();
    }
  }
}

/// Whatever module its results wait for, none is used while it is away, nor freed twice.
TEST(MeasuredPredict, AnyModuleCanWaitOnTheHost) {
  for (const auto& entry : std::filesystem::directory_iterator(kSteps)) {
    if (entry.path().extension() != ".gz") continue;
    const Result<Job> read = ReadJob(*Input::Open(entry.path().string()));
    ASSERT_TRUE(read.ok());
    const std::vector<std::string> modules = CheckpointModules(*read, read->variants[0]);
    for (std::size_t i = 0; i < modules.size(); i += IsNightly() ? 7 : 20) {
      for (std::size_t k = i + 1; k < modules.size(); k += 29) {
        Job job = CopyOf(*read, 0);
        const CheckpointSegment waits{.modules = {modules[i]}, .waits_for = modules[k]};
        const Variant changed = OffloadBlocks(job, job.variants[0], {waits});
        const std::vector<std::string> faults = FaultsOf(job, changed, false);
        EXPECT_TRUE(faults.empty()) << entry.path() << " " << waits.Text() << ": " << faults.size()
                                    << " faults, the first: " << faults.front();
      }
    }
  }
}

/// The rules alone, without what was measured of these very shapes: wider, but not wild.
TEST(MeasuredPredict, TheRulesAloneComeClose) {
  std::ifstream file(kSteps / "measured.json");
  for (const nlohmann::json& row : nlohmann::json::parse(file)) {
    SCOPED_TRACE(row["id"].get<std::string>());
    const Result<Job> job = ReadIt(row);
    ASSERT_TRUE(job.ok());
    const Result<Prediction> p =
        Predict(*job, *FindGpu("H200"), {.batch = row["batch"], .torch = TorchVersion{2, 11}});
    ASSERT_TRUE(p.ok());
    EXPECT_LE(ErrorInPercent(p->trial.needs.allocated.best, row["peak_allocated"]), 2);
    EXPECT_GE(p->trial.needs.reserved.high, row["peak_reserved"].get<Bytes>());
  }
}

Job ReadJobNamed(const std::filesystem::path& file) {
  const Result<Input> input = Input::Open(file.string());
  EXPECT_TRUE(input.ok()) << file;
  Result<Job> job = ReadJob(*input);
  EXPECT_TRUE(job.ok()) << file;
  return std::move(*job);
}

std::vector<std::filesystem::path> StepFiles() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kSteps)) {
    if (entry.path().string().ends_with(".step.json.gz")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void ExpectNoneBroken(const std::vector<std::string>& broken, const std::string& what) {
  for (const std::string& text : broken) ADD_FAILURE() << what << ": " << text;
}

/// Whether a batch surely fits is not monotone in the batch: so each below the answer is as likely
/// as any other to be refused. Those just below, and some
/// all the way down.
TEST(MeasuredPredict, NoBatchBelowTheSureOneIsInDoubt) {
  std::size_t tried = 0;
  for (const std::filesystem::path& file : StepFiles()) {
    const Job job = ReadJobNamed(file);
    const std::pair<const char*, std::optional<Bytes>> places[] = {
        {"8GiB", {}}, {"T4", {}}, {"RTX 4090", {}}, {"A100 40GB", 5 * kGiB}};
    for (const auto& [name, limit] : places) {
      if (!IsWorthATry(tried++ % 7)) continue;
      const Gpu gpu = *FindGpu(name);
      const PredictOptions options{.calibration = Calibration::BuiltIn(gpu.name), .limit = limit};
      const Setting setting = *MakeSetting(job, gpu, options);
      const std::int64_t sure = FindMaxBatch(setting).sure.batch;
      const auto surely = [&](std::int64_t n) { return Trial(setting.WithBatch(n)).surely_fits(); };
      EXPECT_FALSE(surely(sure + 1)) << file << " on " << name << " " << sure;
      std::int64_t n = sure;
      for (int i = 0; i < 40 && n > 0; ++i) {
        EXPECT_TRUE(surely(n)) << file << " on " << name << " " << n << " of " << sure;
        n -= 1 + (i < 8 ? i : sure / 37);
      }
    }
  }
}

/// From far below the memory to far above it, and around it, where verdict and figures part most
/// easily.
TEST(MeasuredPredict, InvariantsHoldOfEveryStepOnEveryGpu) {
  const char* const confs[] = {"", "expandable_segments:True", "garbage_collection_threshold:0.7"};
  const std::optional<Bytes> limits[] = {std::nullopt, 3 * kGiB};
  std::size_t tried = 0;
  for (const std::filesystem::path& file : StepFiles()) {
    const Job job = ReadJobNamed(file);
    for (const char* name : {"6GiB", "RTX 4090", "H200"}) {
      const Gpu gpu = *FindGpu(name);
      for (const std::optional<Bytes>& limit : limits) {
        if (!IsWorthATry(tried++ % 7)) continue;
        PredictOptions options{.steps = 3,
                               .precision = job.variants.back().precision,
                               .calibration = Calibration::BuiltIn(gpu.name),
                               .limit = limit};
        const MaxBatch largest = FindMaxBatch(*MakeSetting(job, gpu, options));
        const std::string what = file.filename().string() + " on " + name;
        ExpectNoneBroken(BrokenInvariants(largest), what);
        const std::int64_t most = largest.most.batch;
        for (const char* conf : confs) {
          options.conf = conf;
          for (const std::int64_t batch :
               {largest.sure.batch, most, most + 1, most + most / 20 + 2}) {
            if (batch < 1 || batch > 1'000'000) continue;
            options.batch = batch;
            const Prediction p = *Predict(job, gpu, options);
            ExpectNoneBroken(BrokenInvariants(p),
                             fmt::format("{}, batch {}, {}", what, batch, conf));
            if (*conf != 0) continue;
            EXPECT_EQ(p.trial.fits, batch <= most) << what << " " << batch;
            if (batch == largest.sure.batch) {
              EXPECT_TRUE(p.trial.surely_fits) << what << " " << batch;
            }
          }
        }
      }
    }
  }
}

/// VGG-16 under set_per_process_memory_fraction on an H200: batches that trained, some of them
/// with workspaces refused, which made them slower.
TEST(MeasuredPredict, RefusedWorkspacesUnderALimit) {
  const Job job = ReadJobNamed(kSteps / "vgg16_sgdm.step.json.gz");
  std::ifstream file(kSteps / "vgg16_under_limit.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_GE(rows.size(), 20u);
  int refusing = 0;
  int foreseen = 0;
  int false_alarms = 0;
  for (const nlohmann::json& row : rows) {
    SCOPED_TRACE(row.dump());
    PredictOptions options{.batch = row["batch"],
                           .precision = row["precision"].get<std::string>(),
                           .torch = TorchVersion{2, 11},
                           .calibration = Calibration::BuiltIn("H200")};
    if (!row["limit"].is_null()) options.limit = row["limit"].get<Bytes>();
    const Result<Prediction> p = Predict(job, *FindGpu("H200"), options);
    ASSERT_TRUE(p.ok());
    EXPECT_EQ(p->trial.fits, row["fits"].get<bool>());
    const bool refused = row["refusals"].get<int>() > 0;
    EXPECT_FALSE(p->trial.surely_fits && refused) << "what surely fits is refused nothing";
    refusing += refused;
    foreseen += refused && p->trial.step_us > p->unlimited_step_us;
    false_alarms += !refused && p->trial.workspaces_refused > 0;
  }
  EXPECT_EQ(refusing, 5);
  EXPECT_EQ(foreseen, 5);
  EXPECT_LE(false_alarms, 1) << "of 23";
}

Result<Job> ReadNamed(const std::string& name) {
  const Result<Input> input = Input::Open((kSteps / (name + ".step.json.gz")).string());
  return input ? ReadJob(*input) : Result<Job>(input.error());
}

std::optional<EarlierFrees> EarlierFreesIn(const Job& job, const Gpu& gpu,
                                           const PredictOptions& options) {
  return FindEarlierFrees(Trial(*MakeSetting(job, gpu, options)));
}

/// The same scripts captured again after the edit that is offered: python/tests/release_jobs.py.
class EarlierFreesOf : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Jobs, EarlierFreesOf, ::testing::Values("output", "batch", "graph"));

TEST_P(EarlierFreesOf, SaveWhatTheEditedJobTakesLess) {
  const Result<Job> kept = ReadNamed("early/" + GetParam() + "_kept");
  const Result<Job> freed = ReadNamed("early/" + GetParam() + "_freed");
  ASSERT_TRUE(kept.ok() && freed.ok());
  const Result<Gpu> gpu = FindGpu("RTX 4090");
  for (const std::int64_t batch : {32, 77, 300, 1024}) {
    SCOPED_TRACE(batch);
    const PredictOptions options{.batch = batch};
    const Result<Prediction> before = Predict(*kept, *gpu, options);
    const Result<Prediction> after = Predict(*freed, *gpu, options);
    const std::optional<EarlierFrees> offered = EarlierFreesIn(*kept, *gpu, options);
    ASSERT_TRUE(before.ok() && after.ok() && offered);
    const PeakSaving& saved = offered->together;
    EXPECT_EQ(offered->changes.size(), 1u);
    EXPECT_EQ(saved.allocated,
              before->trial.unlimited.allocated.best - after->trial.unlimited.allocated.best);
    EXPECT_EQ(saved.device,
              before->trial.unlimited.device.best - after->trial.unlimited.device.best);
    EXPECT_EQ(offered->fits, after->trial.fits);
    EXPECT_FALSE(EarlierFreesIn(*freed, *gpu, options).has_value());
  }
}

}  // namespace plimsoll::predict_test
