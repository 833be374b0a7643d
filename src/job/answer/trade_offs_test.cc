#include "job/answer/trade_offs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "files/input.h"
#include "job/answer/predict.h"
#include "job/file/step_file.h"
#include "job/lowering/job_for_tests.h"

namespace plimsoll::trade_offs_test {
namespace {

using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::WithRoom;

/// 40 MiB of parameters and `each` for each sample; the second precision takes half of that.
JobMaker TwoPrecisions(Bytes each) {
  JobMaker maker;
  maker.Parameter(40 * kMiBOfFloats);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    maker.Free(maker.Make("aten.relu.default", Each(each / 4)));
  }
  maker.job.variants.push_back(maker.variant());
  Variant& half = maker.job.variants.back();
  half.precision = "amp_bf16";
  for (CallRecord& call : half.calls) {
    for (NewStorage& fresh : call.fresh)
      fresh.bytes = Number::Each([](Bytes n) { return n / 2; }, fresh.bytes);
  }
  return maker;
}

/// Of a step that is not to be copied.
std::shared_ptr<const Job> Shared(const Job& job) { return {std::shared_ptr<const Job>(), &job}; }

std::vector<TradeOff> All(const Job& job, const Gpu& gpu, const PredictOptions& chosen) {
  const Result<TradeOffTable> all = TradeOffs(Shared(job), gpu, chosen);
  EXPECT_TRUE(all.ok()) << all.error().ToLine();
  EXPECT_EQ(all->left_out, 0u);
  return all->points;
}

std::vector<std::int64_t> BatchesOf(const std::vector<TradeOff>& all, const std::string& precision,
                                    const std::string& settings) {
  std::vector<std::int64_t> batches;
  for (const TradeOff& t : all) {
    if (t.precision == precision && t.settings == settings) batches.push_back(t.batch);
  }
  return batches;
}

bool Beats(const TradeOff& a, const TradeOff& b) {
  const double a_us = a.trial.step_us / double(a.batch);
  const double b_us = b.trial.step_us / double(b.batch);
  return a.trial.needs.device.high <= b.trial.needs.device.high && a_us <= b_us &&
         (a.trial.needs.device.high < b.trial.needs.device.high || a_us < b_us);
}

void ExpectFrontier(const std::vector<TradeOff>& all) {
  EXPECT_EQ(std::any_of(all.begin(), all.end(), [](const TradeOff& t) { return t.trial.fits; }),
            std::any_of(all.begin(), all.end(), [](const TradeOff& t) { return t.on_frontier; }));
  for (const TradeOff& t : all) {
    const bool beaten = std::any_of(all.begin(), all.end(), [&](const TradeOff& other) {
      return other.trial.fits && Beats(other, t);
    });
    EXPECT_EQ(t.on_frontier, t.trial.fits && !beaten) << t.precision << " " << t.batch;
  }
}

TEST(TradeOffs, EveryPrecisionDoublesUntilNothingFits) {
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  const std::vector<TradeOff> all = All(maker.job, WithRoom(kGiB), {.batch = 24});
  EXPECT_EQ(BatchesOf(all, "as_written", ""),
            (std::vector<std::int64_t>{1, 2, 4, 8, 16, 24, 32, 64, 128}));
  EXPECT_EQ(BatchesOf(all, "amp_bf16", "expandable_segments:True").back(), 256);
  for (const TradeOff& t : all) {
    EXPECT_EQ(t.trial.fits, t.batch < (t.precision == "amp_bf16" ? 256 : 128)) << t.batch;
  }
  ExpectFrontier(all);
}

TEST(TradeOffs, TheLargestThatFitsMayBeAPowerOfTwo) {
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  const std::vector<TradeOff> all = All(maker.job, WithRoom((40 + 64 * 8) * kMiB), {.batch = 64});
  EXPECT_EQ(BatchesOf(all, "as_written", ""),
            (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128}));
  ExpectFrontier(all);
}

TEST(TradeOffs, TheChosenOneIsThereOnceAndIsThePrediction) {
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  const Gpu gpu = WithRoom(kGiB);
  for (const std::int64_t batch : {1, 4, 7, 5000}) {
    const PredictOptions options{.batch = batch, .precision = "amp_bf16"};
    const std::vector<TradeOff> all = All(maker.job, gpu, options);
    ASSERT_EQ(std::count_if(all.begin(), all.end(), [](const TradeOff& t) { return t.chosen; }), 1);
    const TradeOff& chosen =
        *std::find_if(all.begin(), all.end(), [](const TradeOff& t) { return t.chosen; });
    const Prediction p = *Predict(maker.job, gpu, options);
    EXPECT_EQ(chosen.precision, "amp_bf16");
    EXPECT_EQ(chosen.batch, batch);
    EXPECT_EQ(chosen.settings, "");
    EXPECT_EQ(chosen.trial.needs.allocated.best, p.trial.needs.allocated.best);
    EXPECT_EQ(chosen.trial.needs.reserved.best, p.trial.needs.reserved.best);
    EXPECT_EQ(chosen.trial.needs.device.best, p.trial.needs.device.best);
    EXPECT_EQ(chosen.trial.needs.device.high, p.trial.needs.device.high);
    EXPECT_EQ(chosen.trial.step_us, p.trial.step_us);
    EXPECT_EQ(chosen.trial.fits, p.trial.fits);
    EXPECT_EQ(chosen.trial.surely_fits, p.trial.surely_fits);
  }
}

TEST(TradeOffs, ManyDoublingsAreThinnedOut) {
  const JobMaker maker = TwoPrecisions(kKiB);
  const std::vector<TradeOff> all = All(maker.job, *FindGpu("H200"), {.batch = 3});
  const std::vector<std::int64_t> batches = BatchesOf(all, "as_written", "");
  EXPECT_LE(batches.size(), 10u);
  EXPECT_EQ(batches.front(), 1);
  EXPECT_GE(batches[batches.size() - 2], 1 << 23);
  ExpectFrontier(all);
}

TEST(TradeOffs, WhereNothingFitsNothingIsOnTheFrontier) {
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  const std::vector<TradeOff> all = All(maker.job, WithRoom(20 * kMiB), {.batch = 2});
  EXPECT_EQ(BatchesOf(all, "as_written", ""), (std::vector<std::int64_t>{1, 2}));
  ExpectFrontier(all);
}

TEST(TradeOffs, OtherSettingsAreKeptBesideExpandableSegments) {
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  std::set<std::string> settings;
  for (const TradeOff& t :
       All(maker.job, WithRoom(kGiB), {.conf = "per_process_memory_fraction:0.5"})) {
    settings.insert(t.settings);
  }
  EXPECT_EQ(settings,
            (std::set<std::string>{"per_process_memory_fraction:0.5",
                                   "expandable_segments:True,per_process_memory_fraction:0.5"}));
  for (const TradeOff& t : All(maker.job, WithRoom(kGiB), {.conf = "expandable_segments:True"})) {
    EXPECT_EQ(t.settings, "expandable_segments:True");
  }
}

TEST(TradeOffs, ProgressGoesToTheEnd) {
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  std::size_t last = 0;
  std::size_t all_of_them = 0;
  const auto all =
      TradeOffs(Shared(maker.job), WithRoom(kGiB), {}, [&](std::size_t done, std::size_t of) {
        EXPECT_EQ(done, last + 1);
        last = done;
        all_of_them = of;
      });
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(last, all->points.size());
  EXPECT_EQ(all_of_them, all->points.size());
}

TEST(TradeOffs, SaysWhatIsWrong) {
  const Gpu gpu = WithRoom(kGiB);
  const JobMaker maker = TwoPrecisions(8 * kMiB);
  EXPECT_FALSE(TradeOffs(Shared(maker.job), gpu, {.precision = "fp8"}).ok());
  EXPECT_FALSE(TradeOffs(Shared(maker.job), gpu, {.conf = "max_split_size_mb:no"}).ok());
  const JobMaker empty;
  EXPECT_FALSE(TradeOffs(Shared(empty.job), gpu, {}).ok());
}

TEST(TradeOffs, OfCapturedSteps) {
  for (const char* name : {"mlp_adamw_fp32", "resnet18_adamw_amp_bf16", "gpt2_adamw_fp32"}) {
    const auto path =
        std::filesystem::path(PLIMSOLL_TEST_DATA) / "steps" / (std::string(name) + ".step.json.gz");
    const Result<Job> job = ReadJob(*Input::Open(path.string()));
    ASSERT_TRUE(job.ok());
    ExpectFrontier(All(*job, *FindGpu("RTX4090"), {.batch = 6}));
  }
}

}  // namespace
}  // namespace plimsoll::trade_offs_test
