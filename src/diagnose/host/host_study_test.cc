#include "diagnose/host/host_study.h"

#include <gtest/gtest.h>

#include <string>

#include "answer/invariants.h"
#include "base/text.h"

namespace plimsoll::host_study_test {
namespace {

constexpr std::size_t kMainProcess = 0;
constexpr std::size_t kGrower = 1;
constexpr std::size_t kQuiet = 2;

/// Ten seconds: one worker of two grows by 1 GiB a second, and the job fails then.
struct Story {
  Bytes memory = 32 * kGiB;
  std::optional<Bytes> limit = {};
  std::optional<OomKills> kills_at_end = OomKills{.group = 0, .machine = 0};
  std::optional<int> signal = 9;
  bool ends = true;
  int code = 1;
};

HostRecord Record(const Story& story) {
  HostRecord record{.file = "host.jsonl", .began = 1000, .memory = story.memory, .shm = kGiB};
  if (story.limit) record.group = HostGroup{.path = "/job", .limit = story.limit};
  if (story.kills_at_end) record.kills = {.group = 0, .machine = 0};
  record.processes = {{.pid = 10, .role = HostRole::kMain},
                      {.pid = 11, .parent = 10, .role = HostRole::kLoaderWorker, .number = 0},
                      {.pid = 12, .parent = 10, .role = HostRole::kLoaderWorker, .number = 1}};
  for (int second = 0; second < 10; ++second) {
    const Bytes grown = (second + 1) * kGiB;
    const Bytes all = grown + 3 * kGiB;
    record.samples.push_back({.time = 1000.0 + second,
                              .available = story.memory - all,
                              .shm = 0,
                              .group = all,
                              .kills = record.kills,
                              .held = {{.process = kMainProcess, .resident = 2 * kGiB},
                                       {.process = kGrower, .resident = grown},
                                       {.process = kQuiet, .resident = kGiB}}});
  }
  if (story.signal) {
    record.deaths.push_back({.process = kGrower, .time = 1009.5, .signal = story.signal});
  }
  if (story.ends) {
    record.end = HostEnd{.time = 1010, .code = story.code};
    if (story.kills_at_end) record.end->kills = *story.kills_at_end;
  }
  return record;
}

/// The answer that consists of it alone, which must hold together.
Explanation Told(const HostRecord& record, const std::vector<ReportedEnd>& reported = {}) {
  Explanation explanation;
  AddHost(StudyHost(record, reported), explanation);
  EXPECT_EQ(Joined(BrokenInvariants(explanation), "; "), "");
  return explanation;
}

std::string Evidence(const Explanation& told) { return Joined(told.findings[0].evidence, "\n"); }

TEST(HostStudy, TheGroupsCounterIsCertain) {
  const Explanation told =
      Told(Record({.limit = 14 * kGiB, .kills_at_end = OomKills{.group = 1, .machine = 1}}));
  ASSERT_EQ(told.host->kills.size(), 1u);
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kCertain);
  EXPECT_EQ(told.findings[0].severity, Severity::kHigh);
  EXPECT_TRUE(told.verdict.starts_with(
      "The kernel killed loader worker 0 (pid 11) at the memory limit of its container or job. "))
      << told.verdict;
  const std::string evidence = Evidence(told);
  EXPECT_TRUE(Contains(evidence, "it held 10.00 GiB at 00:16:49")) << evidence;
  EXPECT_TRUE(Contains(evidence, "held 13.00 GiB together")) << evidence;
  EXPECT_TRUE(Contains(evidence, "control group allows 14.00 GiB, 1.00 GiB was left")) << evidence;
  EXPECT_TRUE(Contains(evidence,
                       "loader worker 0 (pid 11) grew from 1.00 GiB to 10.00 GiB in 9 s, since "
                       "00:16:40, 1.00 GiB a second"))
      << evidence;
  EXPECT_TRUE(Contains(evidence, "went from 0 to 1")) << evidence;
  // Half of two workers with 11 GiB together.
  const auto fewer =
      std::ranges::find(told.findings[0].remedies, Lever::kLoaderWorkers, &Remedy::lever);
  ASSERT_NE(fewer, told.findings[0].remedies.end());
  EXPECT_EQ(fewer->saves, 11 * kGiB / 2);
  EXPECT_TRUE(fewer->at_most);
}

TEST(HostStudy, TheKernelsLogIsCertain) {
  HostRecord record = Record({.memory = 14 * kGiB, .kills_at_end = {}, .signal = {}});
  record.end->named_by_kernel = {11};
  const Explanation told = Told(record);
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kCertain);
  EXPECT_TRUE(Contains(told.verdict, "because the host's memory was full")) << told.verdict;
}

TEST(HostStudy, WithoutCountersAFullMachineIsLikely) {
  const Explanation told = Told(Record({.memory = 14 * kGiB, .kills_at_end = {}}));
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kLikely);
  EXPECT_TRUE(Contains(told.verdict, "most likely by the kernel")) << told.verdict;
}

TEST(HostStudy, WithMemoryToSpareSomebodyDidIt) {
  const Explanation told = Told(Record({.memory = 500 * kGiB, .kills_at_end = {}}));
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kUnlikely);
  EXPECT_EQ(told.findings[0].severity, Severity::kMedium);
  EXPECT_TRUE(Contains(told.verdict, "not by the kernel for lack of memory")) << told.verdict;
  EXPECT_TRUE(Contains(Evidence(told), "a scheduler")) << Evidence(told);
  ASSERT_EQ(told.findings[0].remedies.size(), 1u);
}

TEST(HostStudy, ACounterThatDidNotMoveIsProofEvenWhereMemoryWasFull) {
  const Explanation told = Told(Record({.memory = 14 * kGiB}));
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kUnlikely);
  EXPECT_TRUE(Contains(Evidence(told), "did not change; memory was nearly full all the same"))
      << Evidence(told);
}

TEST(HostStudy, TheMachinesCounterAloneDoesNotSayWhom) {
  HostRecord record = Record({.memory = 14 * kGiB, .kills_at_end = OomKills{.machine = 1}});
  record.kills.group.reset();
  EXPECT_EQ(Told(record).host->kills[0].certainty, KillCertainty::kLikely);
}

TEST(HostStudy, TheRecordBreaksOffWhileMemoryIsFull) {
  const Explanation told = Told(Record({.limit = 14 * kGiB, .signal = {}, .ends = false}));
  ASSERT_EQ(told.host->kills.size(), 1u);
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kLikely);
  EXPECT_TRUE(Contains(told.verdict, "The main process")) << told.verdict;
  EXPECT_TRUE(Contains(Evidence(told), "the record breaks off there")) << Evidence(told);
}

TEST(HostStudy, TheCounterRisesAndNobodySawWhom) {
  HostRecord record = Record({.limit = 14 * kGiB, .signal = {}});
  record.end->kills.group = 1;
  // All are there to the end.
  EXPECT_TRUE(Told(record).host->kills.empty());
  record.deaths.push_back({.process = kGrower, .time = 1009.5});
  const Explanation told = Told(record);
  ASSERT_EQ(told.host->kills.size(), 1u);
  EXPECT_EQ(told.host->kills[0].process, kGrower);
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kLikely);
}

TEST(HostStudy, AShellTellsOfItsCommand) {
  HostRecord record = Record({.signal = {}});
  record.deaths = {{.process = kMainProcess, .time = 1010, .code = 137}};
  const Explanation told = Told(record);
  ASSERT_EQ(told.host->kills.size(), 1u);
  EXPECT_EQ(told.host->kills[0].process, kGrower);
}

TEST(HostStudy, ALogTellsOfAWorker) {
  const HostRecord record = Record({.memory = 14 * kGiB, .kills_at_end = {}, .signal = {}});
  EXPECT_TRUE(Told(record).host->kills.empty());
  for (const HostEvent event : {HostEvent::kWorkerKilled, HostEvent::kWorkerLost}) {
    const Explanation told = Told(record, {{.event = event, .pid = 11}});
    ASSERT_EQ(told.host->kills.size(), 1u);
    EXPECT_EQ(told.host->kills[0].process, kGrower);
  }
  EXPECT_TRUE(Told(record, {{.event = HostEvent::kWorkerKilled, .pid = 99}}).host->kills.empty());
}

TEST(HostStudy, ABusErrorWhereSharedMemoryIsFull) {
  HostRecord record = Record({.signal = 7});
  EXPECT_TRUE(Told(record).host->kills.empty());
  for (HostSample& sample : record.samples) sample.shm = kGiB - kMiB;
  const Explanation told = Told(record);
  ASSERT_EQ(told.host->kills.size(), 1u);
  EXPECT_TRUE(told.host->kills[0].shared_memory);
  EXPECT_TRUE(told.verdict.starts_with("Shared memory (/dev/shm) was full")) << told.verdict;
  EXPECT_TRUE(Contains(told.verdict, "/dev/shm held 1023.00 MiB of 1.00 GiB")) << told.verdict;
  EXPECT_EQ(told.findings[0].remedies[0].lever, Lever::kSharedMemory);
  // Not yet full a second before, and filling.
  for (std::size_t i = 0; i < 10; ++i) record.samples[i].shm = static_cast<Bytes>(i) * 80 * kMiB;
  EXPECT_EQ(Told(record).host->kills[0].certainty, KillCertainty::kLikely);
  record.samples.push_back({.time = 1010, .shm = kGiB});
  EXPECT_EQ(Told(record).host->kills[0].certainty, KillCertainty::kCertain);
}

TEST(HostStudy, PinnedMemoryIsCounted) {
  HostRecord record = Record({.memory = 14 * kGiB, .kills_at_end = {}});
  for (HostSample& sample : record.samples) sample.held[0].pinned = kGiB;
  const Explanation told = Told(record);
  const auto unpinned =
      std::ranges::find(told.findings[0].remedies, "no pinned memory", &Remedy::change);
  ASSERT_NE(unpinned, told.findings[0].remedies.end());
  EXPECT_EQ(unpinned->saves, kGiB);
}

TEST(HostStudy, RanksThatLoadAtTheSameTime) {
  HostRecord record = Record({.limit = 14 * kGiB, .kills_at_end = OomKills{.group = 1}});
  for (const std::size_t rank : {kGrower, kQuiet}) {
    record.processes[rank].role = HostRole::kRank;
    record.processes[rank].rank = static_cast<int>(rank) - 1;
  }
  for (HostSample& sample : record.samples) sample.held[2].resident = sample.held[1].resident / 2;
  const Explanation told = Told(record);
  EXPECT_TRUE(Contains(told.verdict, "rank 0 (pid 11)")) << told.verdict;
  const auto turns = std::ranges::find_if(told.findings[0].remedies, [](const Remedy& r) {
    return r.change.starts_with("one rank after the other");
  });
  ASSERT_NE(turns, told.findings[0].remedies.end());
  EXPECT_EQ(turns->saves, 9 * kGiB / 2);
}

TEST(HostStudy, ProportionalSizesAreFollowed) {
  HostRecord record = Record({});
  record.samples[4].held[kGrower].proportional = 3 * kGiB;  // of 5, 2 are shared
  const HostStudy study = StudyHost(record);
  EXPECT_EQ(study.report.together, 11 * kGiB);
}

TEST(HostStudy, AJobThatEndsWellHasItsPeakTold) {
  const Explanation told = Told(Record({.code = 0}));
  EXPECT_TRUE(told.findings.empty());
  EXPECT_EQ(told.verdict,
            "The job took at most 13.00 GiB of the host's memory, at 00:16:49; the machine has "
            "32.00 GiB, of which 19.00 GiB was left at the least.");
}

TEST(HostStudy, NothingWasSampled) {
  const Explanation told = Told({.file = "host.jsonl"});
  EXPECT_EQ(told.verdict, "The host's memory was not sampled: the job was over before that.");
}

TEST(HostStudy, WhatWasKilledIsToldAsItWasWhenItLived) {
  HostRecord record = Record({});
  // Dead, and not asked for yet.
  record.samples.push_back({.time = 1009.7,
                            .available = 28 * kGiB,
                            .held = {{.process = kMainProcess, .resident = 2 * kGiB},
                                     {.process = kGrower, .resident = 0}}});
  record.deaths[0].time = 1009.8;
  const Explanation told = Told(record);
  EXPECT_TRUE(Contains(Evidence(told), "it held 10.00 GiB")) << Evidence(told);
  EXPECT_EQ(told.host->together, 13 * kGiB);
  EXPECT_TRUE(told.host->processes[kGrower].growth.has_value());
}

TEST(HostStudy, WhatLaunchersEndAfterwardsIsNotTheCause) {
  HostRecord record = Record({.limit = 14 * kGiB, .kills_at_end = OomKills{.group = 1}});
  record.deaths.push_back({.process = kQuiet, .time = 1009.9, .signal = 9});
  const Explanation told = Told(record);
  ASSERT_EQ(told.host->kills.size(), 2u);
  EXPECT_EQ(told.host->kills[0].certainty, KillCertainty::kCertain);
  EXPECT_EQ(told.host->kills[1].certainty, KillCertainty::kUnlikely);
  EXPECT_TRUE(Contains(Evidence(told), "1 more process was killed afterwards")) << Evidence(told);
}

}  // namespace
}  // namespace plimsoll::host_study_test
