#include "job/answer/host_needs.h"

#include <gtest/gtest.h>

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

TEST(HostNeeds, TheLargestStageIsTold) {
  const Job job = WithHost();
  const std::optional<HostNeeds> needs = FindHostNeeds(job, job.variants[0], 64);
  ASSERT_TRUE(needs);
  EXPECT_EQ(needs->part, 0U);
  EXPECT_EQ(needs->where, "a.py:1");
  EXPECT_EQ(needs->tensors, 4 * kGiB);
  EXPECT_EQ(needs->resident, needs->base + needs->imports + needs->tensors);
  // The steps have a megabyte for each sample, and libraries that were not there before.
  EXPECT_GT(needs->by_part[1], 64 * kMiB + needs->base + needs->imports);
}

TEST(HostNeeds, WhatALoopKeepsIsCountedForAllItsBatches) {
  Job job = WithHost();
  job.variants[0].later = {{.stage = Stage::kEvaluation},
                           {.stage = Stage::kEvaluation, .times = {98, 98}},
                           {.stage = Stage::kEvaluation, .batches = {100, 100}, .seen = 2}};
  const auto at = [](Bytes bytes) { return HostPeak{.bytes = {bytes, bytes}, .where = "a.py:3"}; };
  // Each batch leaves 10 MiB, and all are put together, which takes as much again.
  job.host->later = {at(10 * kMiB), at(20 * kMiB), at(40 * kMiB)};
  const std::optional<HostNeeds> needs = FindHostNeeds(job, job.variants[0], 4);
  ASSERT_TRUE(needs);
  ASSERT_EQ(needs->by_part.size(), 5U);
  const Bytes outside = needs->by_part[1] - 4 * kMiB;
  EXPECT_EQ(needs->by_part[3] - outside, 990 * kMiB);
  EXPECT_EQ(needs->by_part[4] - outside, 1990 * kMiB);
}

TEST(HostNeeds, NothingWhereNobodyLooked) {
  Job job = WithHost();
  job.host.reset();
  EXPECT_FALSE(FindHostNeeds(job, job.variants[0], 4));
}

}  // namespace
}  // namespace plimsoll::host_needs_test
