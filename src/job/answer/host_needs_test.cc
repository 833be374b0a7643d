#include "job/answer/host_needs.h"

#include <gtest/gtest.h>

#include <memory>

#include "job/trial/trial.h"

namespace plimsoll::host_needs_test {
namespace {

Job WithHost() {
  Job job;
  job.batches[0] = 4;
  job.batches[1] = 8;
  job.variants.emplace_back();
  job.host = HostPeaks{.imports = 100 * kMiB,
                       .build = {.bytes = {4 * kGiB, 4 * kGiB}, .where = "a.py:1"},
                       .steps = {.bytes = {4 * kMiB, 8 * kMiB}, .where = "a.py:2"}};
  return job;
}

std::optional<HostNeeds> NeedsOf(const Job& job, std::int64_t batch,
                                 const PinnedSettings& pinned = {}) {
  Setting setting{.job = std::make_shared<Job>(CopyOf(job, 0)), .batch = batch};
  setting.rules.settings.pinned = pinned;
  return FindHostNeeds(setting);
}

TEST(HostNeeds, TheLargestStageIsTold) {
  const std::optional<HostNeeds> needs = NeedsOf(WithHost(), 64);
  ASSERT_TRUE(needs);
  const HostPart& peak = needs->peak();
  EXPECT_EQ(needs->most, PartPeaks::kBuild);
  EXPECT_EQ(peak.where, "a.py:1");
  EXPECT_EQ(peak.tensors, 4 * kGiB);
  EXPECT_EQ(peak.resident(), peak.base + peak.imports + peak.tensors);
  EXPECT_EQ(needs->of_machine(), peak.resident());
  // The steps have a megabyte for each sample, and libraries that were not there before.
  EXPECT_EQ(needs->parts[1].tensors, 64 * kMiB);
  EXPECT_GT(needs->parts[1].base, peak.base);
}

TEST(HostNeeds, PinnedMemoryComesInPowersOfTwoAndIsKept) {
  Job job = WithHost();
  // At batch 8 two requests of 96 MiB at a time, in two steps.
  const PinnedEvent request{.bytes = {48 * kMiB, 96 * kMiB}};
  job.host->steps.pinned = {request, request, {.ends = 1}, {.ends = 2}, request, request};
  EXPECT_EQ(NeedsOf(job, 8)->parts[1].pinned, 256 * kMiB);
  EXPECT_EQ(NeedsOf(job, 4)->parts[1].pinned, 128 * kMiB);
  EXPECT_EQ(NeedsOf(job, 8, {.max_round_threshold = 64 * kMiB})->parts[1].pinned, 192 * kMiB);
}

TEST(HostNeeds, PinnedBatchesThatALoopKeepsAreCountedForAll) {
  Job job = WithHost();
  job.variants[0].later = {{.stage = Stage::kEvaluation},
                           {.stage = Stage::kEvaluation, .times = {99, 99}}};
  const PinnedEvent request{.bytes = {kMiB, kMiB}};
  const HostPeak batch{.bytes = {}, .where = "a.py:3", .pinned = {request}};
  job.host->later = {batch, batch};
  EXPECT_EQ(NeedsOf(job, 4)->pinned(), 100 * kMiB);
  // What each gives back is there for the next: its own, or that of the batch before.
  job.host->later[1].pinned = {request, {.ends = 1}};
  EXPECT_EQ(NeedsOf(job, 4)->pinned(), 2 * kMiB);
  job.host->later[1].pinned = {request, {.ends = 2}};
  EXPECT_EQ(NeedsOf(job, 4)->pinned(), 2 * kMiB);
}

TEST(HostNeeds, WorkersAndSharedMemoryAreOfTheMachine) {
  Job job = WithHost();
  job.host->steps.bytes = {8 * kGiB, 8 * kGiB};
  job.host->steps.workers = {4, 4};
  job.host->steps.shared = {kGiB, 2 * kGiB};
  const std::optional<HostNeeds> needs = NeedsOf(job, 8);
  EXPECT_EQ(needs->most, PartPeaks::kSteps);
  EXPECT_EQ(needs->shared(), 2 * kGiB);
  EXPECT_EQ(needs->of_machine(), needs->peak().resident() + 2 * kGiB + needs->peak().of_workers);
}

TEST(HostNeeds, WhatALoopKeepsIsCountedForAllItsBatches) {
  Job job = WithHost();
  job.variants[0].later = {{.stage = Stage::kEvaluation},
                           {.stage = Stage::kEvaluation, .times = {98, 98}},
                           {.stage = Stage::kEvaluation, .batches = {100, 100}, .seen = 2}};
  const auto at = [](Bytes bytes) { return HostPeak{.bytes = {bytes, bytes}, .where = "a.py:3"}; };
  // Each batch leaves 10 MiB, and all are put together, which takes as much again.
  job.host->later = {at(10 * kMiB), at(20 * kMiB), at(40 * kMiB)};
  const std::optional<HostNeeds> needs = NeedsOf(job, 4);
  ASSERT_TRUE(needs);
  ASSERT_EQ(needs->parts.size(), 5U);
  EXPECT_EQ(needs->parts[3].tensors, 990 * kMiB);
  EXPECT_EQ(needs->parts[4].tensors, 1990 * kMiB);
}

TEST(HostNeeds, NothingWhereNobodyLooked) {
  Job job = WithHost();
  job.host.reset();
  EXPECT_FALSE(NeedsOf(job, 4));
}

}  // namespace
}  // namespace plimsoll::host_needs_test
