// A predicted run, written as a memory snapshot and explained: what explain finds in it is what was
// predicted, for every captured job that is here.
#include "job/answer/predicted_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cli/script_flags.h"
#include "diagnose/attribution/account.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/explain.h"
#include "job/answer/held_by.h"
#include "job/answer/predict.h"
#include "job/file/at_length.h"
#include "job/file/step_file.h"
#include "readers/registry.h"

namespace plimsoll::predicted_snapshot_test {
namespace {

std::vector<std::string> CapturedJobs() {
  std::vector<std::string> jobs;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(PLIMSOLL_TEST_DATA)) {
    if (entry.path().string().ends_with(".step.json.gz")) jobs.push_back(entry.path().string());
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

std::string NameOf(const testing::TestParamInfo<std::string>& job) {
  std::string name = std::filesystem::relative(job.param, PLIMSOLL_TEST_DATA).string();
  name.resize(name.find(".step"));
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

using Row = std::tuple<std::string, std::string, std::string, Bytes, std::int64_t>;

/// By line, purpose and module.
std::vector<Row> RowsOf(const std::vector<Holder>& holders) {
  std::vector<Row> rows;
  for (const Holder& h : holders) {
    const std::string category(CategoryName(h.category));
    rows.emplace_back(h.where, category, h.module, h.bytes, h.count);
    for (const HolderPart& part : h.parts) {
      rows.emplace_back(h.where, category, "part " + part.module, part.bytes, part.count);
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

/// The blocks that are alive after a request; what is borrowed is there at its own request only.
std::vector<std::uint32_t> AliveAfter(const Lowered& lowered, std::size_t request) {
  std::vector<char> alive(lowered.blocks.size(), 0);
  for (std::size_t i = 0; i <= request; ++i) {
    const Request& r = lowered.workload.requests[i];
    const bool borrowed = r.kind == Request::Kind::kBorrow && i == request;
    alive[r.allocation] = borrowed || r.kind == Request::Kind::kAllocate;
  }
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t b = 0; b < alive.size(); ++b) {
    if (alive[b] != 0) blocks.push_back(b);
  }
  return blocks;
}

class RoundTrip : public testing::TestWithParam<std::string> {
 protected:
  static Result<Trial> TrialOf(const std::string& file, const char* gpu,
                               const PredictOptions& options) {
    Result<Input> input = Input::Open(file);
    if (!input) return input.error();
    Result<Job> job = ReadJob(*input);
    if (!job) return job.error();
    if (HasLength(*job)) {
      const std::int64_t length = CapturedLengths(*job).front();
      job = AtAskedLength(std::move(*job), length);
      if (!job) return job.error();
    }
    const Result<Setting> setting = MakeSetting(*job, *FindGpu(gpu), options);
    if (!setting) return setting.error();
    return Trial::Of(*setting);
  }
};

void ExpectRoundTrip(const Result<Trial>& trial) {
  ASSERT_TRUE(trial.ok()) << trial.error().ToLine();
  const Prediction prediction = Predict(*trial);
  std::string bytes;
  WritePredictedSnapshot(*trial, [&](std::string_view more) { bytes += more; });

  const Result<Input> input = Input::FromMemory("predicted.pickle", bytes);
  ASSERT_TRUE(input.ok());
  const Result<Recording> recording = Read(*input);
  ASSERT_TRUE(recording.ok()) << recording.error().ToLine();
  ASSERT_EQ(recording->timelines.size(), 1);
  EXPECT_TRUE(recording->skipped.empty());
  const AnalysedTrace trace(recording->timelines.front());
  EXPECT_FALSE(trace.timeline.prediction.empty());
  EXPECT_EQ(trace.ledger.contradictions, 0);
  EXPECT_EQ(trace.ledger.before, 0);

  const Peaks& shown = trial->shown();
  EXPECT_EQ(trace.ledger.peak_allocated, shown.allocated);
  EXPECT_EQ(trace.ledger.peak_reserved, shown.reserved);

  const Position at = trace.ledger.peak_allocated_at;
  const Account account = AccountAt(trace.phases, trace.attribution, at);
  std::map<AccountItem, Bytes> explained;
  for (const AccountLine& line : account.lines) {
    if (line.bytes != 0) explained[line.what] = line.bytes;
  }
  std::map<AccountItem, Bytes> predicted;
  for (const AccountLine& line : prediction.account) predicted[line.what] = line.bytes;
  // What is cached at the peak of allocated memory is not what is cached at that of reserved
  // memory; and what lies outside PyTorch is in no snapshot.
  for (const AccountItem item : {AccountItem::kCached, AccountItem::kFragmented,
                                 AccountItem::kOutside, AccountItem::kNccl}) {
    explained.erase(item);
    predicted.erase(item);
  }
  EXPECT_EQ(explained, predicted);

  const std::vector<Holder> holders = HoldersAt(trace.phases, trace.attribution, at);
  EXPECT_EQ(RowsOf(holders), RowsOf(HeldBy(*trial, AliveAfter(trial->lowered(), shown.request))));

  // Those behind a load are steps too.
  std::set<std::pair<int, int>> steps;
  for (const Moment& moment : trial->lowered().moments) {
    if (moment.stage == Stage::kBackward) steps.insert({moment.part, moment.step});
  }
  EXPECT_EQ(trace.phases.steps, std::ssize(steps));
}

TEST_P(RoundTrip, SaysWhatWasPredicted) {
  ExpectRoundTrip(TrialOf(GetParam(), "H200", {.batch = 4}));
}

TEST_P(RoundTrip, WithExpandableSegments) {
  ExpectRoundTrip(TrialOf(GetParam(), "H200", {.batch = 2, .conf = "expandable_segments:True"}));
}

// A snapshot says how requests are rounded: explain rounds its events anew.
TEST_P(RoundTrip, WithRoundedRequests) {
  ExpectRoundTrip(TrialOf(GetParam(), "H200", {.batch = 3, .conf = "roundup_power2_divisions:4"}));
}

/// Where PyTorch gives cached memory back, and where it does not fit at all.
TEST_P(RoundTrip, WithinLittleRoom) { ExpectRoundTrip(TrialOf(GetParam(), "3GiB", {.batch = 8})); }

INSTANTIATE_TEST_SUITE_P(Jobs, RoundTrip, testing::ValuesIn(CapturedJobs()), NameOf);

}  // namespace
}  // namespace plimsoll::predicted_snapshot_test
