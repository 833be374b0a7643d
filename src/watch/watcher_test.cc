#include "watch/watcher.h"

#include <gtest/gtest.h>

namespace plimsoll::watcher_test {
namespace {

using std::string_literals::operator""s;

constexpr const char* kFirst = "6f1c2c5e-8a8f-3b0e-9a51-0c5d3b0a7f11";
constexpr const char* kSecond = "91a0f0de-2b7c-4f5b-8d8e-55aa33cc1199";
/// Above what Linux gives, so that none of them is there.
constexpr std::int64_t kPid = 50'000'001;

std::vector<DriverGpu> TwoGpus() {
  const DriverMemory memory{.total = 80 * kGiB, .used = 10 * kGiB, .free = 70 * kGiB};
  return {{.index = 0, .uuid = "GPU-"s + kFirst, .memory = memory},
          {.index = 1,
           .uuid = "GPU-"s + kSecond,
           .memory = memory,
           .processes = {{.pid = kPid, .used = 9 * kGiB}, {.pid = kPid + 1, .used = kGiB}}}};
}

LiveProcess Rank(int rank, std::int64_t pid, LiveDevice device) {
  device.reserved = 8 * kGiB;
  return {.pid = pid, .rank = rank, .optimizer_steps = 5, .wrote = 90, .devices = {device}};
}

TEST(Watcher, ARankJoinsTheProcessThatTheDriverTells) {
  // By the GPU's own name; CUDA counts only those that the process may see.
  const WatchSample sample =
      Watcher().Take({.since_1970 = 92}, TwoGpus(), {Rank(3, kPid, {.gpu = 0, .uuid = kSecond})});
  EXPECT_TRUE(sample.gpus[0].processes.empty());
  ASSERT_EQ(sample.gpus[1].processes.size(), 2U);
  const WatchedProcess& first = sample.gpus[1].processes[0];
  EXPECT_EQ(first.pid, kPid);
  EXPECT_EQ(first.rank, 3);
  EXPECT_EQ(first.used, 9 * kGiB);
  ASSERT_TRUE(first.reported);
  EXPECT_EQ(first.reported->reserved, 8 * kGiB);
  EXPECT_DOUBLE_EQ(first.age, 2);
  EXPECT_FALSE(sample.gpus[1].processes[1].reported);
}

TEST(Watcher, WithoutTheGpusNameTheDriversListDecides) {
  WatchSample sample = Watcher().Take({}, TwoGpus(), {Rank(0, kPid, {.gpu = 0})});
  EXPECT_TRUE(sample.gpus[0].processes.empty());
  EXPECT_TRUE(sample.gpus[1].processes[0].reported);
  // In a container the numbers of processes differ: then the GPU's.
  sample = Watcher().Take({}, TwoGpus(), {Rank(0, 7'000'007'000, {.gpu = 0})});
  ASSERT_EQ(sample.gpus[0].processes.size(), 1U);
  EXPECT_FALSE(sample.gpus[0].processes[0].used);
  EXPECT_TRUE(sample.gpus[0].processes[0].reported);
  // A part of a GPU, which has a name of its own.
  sample = Watcher().Take({}, TwoGpus(), {Rank(0, kPid, {.gpu = 0, .uuid = "0"})});
  EXPECT_TRUE(sample.gpus[1].processes[0].reported);
  // A GPU that is not here.
  sample = Watcher().Take({}, TwoGpus(), {Rank(0, kPid + 9, {.gpu = 0, .uuid = "0"})});
  EXPECT_TRUE(sample.gpus[0].processes.empty());
}

TEST(Watcher, TimeUntilFullAndUntilTheBudget) {
  Watcher watcher;
  WatchSample sample;
  for (int i = 0; i <= 30; ++i) {
    std::vector<DriverGpu> gpus = TwoGpus();
    gpus[1].memory->used += i * kGiB;
    gpus[1].memory->free -= i * kGiB;
    gpus[1].processes[0].used = (9 + i) * kGiB;
    LiveProcess rank = Rank(0, kPid, {.uuid = kSecond});
    rank.budget = 58 * kGiB;
    rank.devices[0].reserved = (8 + i) * kGiB;
    sample = watcher.Take({.since_1970 = 90.0 + i, .steady = 1.0 * i}, gpus, {rank});
  }
  EXPECT_EQ(sample.gpus[0].trend.kind, TrendKind::kFlat);
  EXPECT_FALSE(sample.gpus[0].seconds_until_full);
  EXPECT_NEAR(sample.gpus[1].seconds_until_full.value(), 40, 0.1);
  EXPECT_NEAR(sample.gpus[1].processes[0].seconds_until_budget.value(), 20, 0.1);
  EXPECT_FALSE(sample.gpus[1].processes[1].seconds_until_budget);
}

}  // namespace
}  // namespace plimsoll::watcher_test
