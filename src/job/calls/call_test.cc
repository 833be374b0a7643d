#include "job/calls/call.h"

#include <gtest/gtest.h>

#include <limits>

#include "job/lowering/job_for_tests.h"
#include "job/rules/testing.h"

namespace plimsoll::call_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

TEST(AtBatch, ANumberLiesOnTheLineThroughItsPair) {
  const Job job;  // at 2 and 3
  const AtBatch at(job, 8);
  EXPECT_EQ(at.Of(Always(7)), 7);
  EXPECT_EQ(at.Of(Each(10)), 80);
  EXPECT_EQ(at.Of({5, 6}), 11) << "an offset";
  EXPECT_EQ(at.Of({30, 20}), -30) << "falling";
  EXPECT_EQ(AtBatch(job, 1).Of(Each(10)), 10) << "below both";
}

TEST(AtBatch, TheSizesOfTheCaptureMayLieApart) {
  Job job;
  job.batches[0] = 4;
  job.batches[1] = 12;
  const AtBatch at(job, 6);
  EXPECT_EQ(at.Of({400, 1200}), 600);
  EXPECT_EQ(at.Of({1, 2}), 1) << "rounded towards the first";
}

TEST(AtBatch, HugeNumbersEndSomewhere) {
  const Job job;
  const AtBatch at(job, 1 << 24);
  EXPECT_EQ(at.Of(Always(kLargest)), kLargest) << "the end of a slice";
  EXPECT_EQ(at.Of({0, kLargest}), kMostElements);
  EXPECT_EQ(at.Of({kLargest, 0}), -kMostElements);
  EXPECT_EQ(at.Of({-kLargest, kLargest}), kMostElements);
}

TEST(AtBatch, ALayoutNeitherTurnsNegativeNorOverflows) {
  JobMaker maker;
  const std::uint32_t falls = maker.AddLayout({{30, 20}, Always(4)});
  const std::uint32_t grows = maker.AddLayout({Each(1 << 20), Each(1 << 20)});
  const AtBatch at(maker.job, 1 << 24);
  EXPECT_EQ(at.layout(falls).Numel(), 0);
  EXPECT_LE(at.layout(grows).Numel(), kMostElements);
  EXPECT_GT(at.layout(grows).Numel(), kMostElements / 2);
  (void)at.layout(grows).IsContiguous();
}

/// CLIP compares each of a batch with each: its logits are batch by batch.
TEST(AtBatch, StoragesGrowAsTheirResultDoes) {
  JobMaker maker;
  maker.Make("aten.mm.default", std::vector<Number>{Each(1), Each(1)});
  const CallRecord& call = maker.last_call();
  ASSERT_EQ(call.fresh[0].bytes.at(0), 16);
  ASSERT_EQ(call.fresh[0].bytes.at(1), 36);
  EXPECT_EQ(AtBatch(maker.job, 100).BytesOf(call, call.fresh[0]), 40'000);
}

TEST(AtBatch, AStorageThatItsResultDoesNotExplainGrowsAlongALine) {
  JobMaker maker;
  maker.Make("aten.mm.default", std::vector<Number>{Each(1), Each(1)});
  CallRecord& call = maker.last_call();
  call.fresh[0].bytes = {1016, 1036};
  EXPECT_EQ(AtBatch(maker.job, 100).BytesOf(call, call.fresh[0]), 1016 + 98 * 20);
  call.results.clear();
  call.fresh[0].bytes = {16, 36};
  EXPECT_EQ(AtBatch(maker.job, 100).BytesOf(call, call.fresh[0]), 16 + 98 * 20);
}

class CallTest : public testing::Test {
 protected:
  static JobMaker OneCall() {
    JobMaker maker;
    maker.Make("aten.op.default", Always(4));
    return maker;
  }
  Call Made() const { return Call(record_, at_, Stage::kForward); }

  JobMaker maker_ = OneCall();
  CallRecord record_ = maker_.last_call();
  AtBatch at_{maker_.job, 8};
};

TEST_F(CallTest, ArgumentsAreFoundByPosition) {
  record_.args = {Arg(std::int64_t{5}),
                  {.is = Each(2)},
                  Arg(true),
                  Arg(0.5),
                  ListArg(std::vector<std::int64_t>{1, 2})};
  const Call call = Made();
  EXPECT_EQ(call.IntArg(0), 5);
  EXPECT_EQ(call.IntArg(1), 16) << "at the batch";
  EXPECT_TRUE(call.BoolArg(2, false));
  EXPECT_EQ(call.FloatArg(3, 0), 0.5);
  EXPECT_EQ(call.FloatArg(0, 0), 5) << "1 for 1.0";
  EXPECT_EQ(call.IntsArg(4), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(call.IntsArg(0), (std::vector<std::int64_t>{5}));
}

TEST_F(CallTest, WhatIsLeftOutOrOfAnotherKindIsNothing) {
  record_.args = {{}, Arg(0.5)};
  const Call call = Made();
  for (const std::size_t i : {0u, 1u, 2u, 99u}) {
    EXPECT_FALSE(call.TensorArg(i).has_value());
    EXPECT_FALSE(call.IntArg(i).has_value());
    EXPECT_TRUE(call.TensorsArg(i).empty());
    EXPECT_TRUE(call.IntsArg(i).empty());
    EXPECT_TRUE(call.BoolsArg(i).empty());
    EXPECT_TRUE(call.BoolArg(i, true));
  }
}

TEST_F(CallTest, ListsSkipWhatIsNoTensor) {
  record_.args = {{.is = Argument::List{Arg(record_.results[0]), {}, Arg(true)}}};
  EXPECT_EQ(Made().TensorsArg(0).size(), 1u);
  EXPECT_EQ(Made().BoolsArg(0), (std::vector<bool>{false, false, true}));
}

TEST_F(CallTest, KeywordsAreFoundByName) {
  record_.kwargs.emplace_back(maker_.job.strings.Intern("is_causal"), Arg(true));
  EXPECT_TRUE(Made().BoolOf(Made().Keyword("is_causal"), false));
  EXPECT_EQ(Made().Keyword("scale"), nullptr);
}

TEST_F(CallTest, ResultsKnowTheirStorage) {
  record_.results.push_back({.storage = 9, .layout = 0, .view = true});
  EXPECT_EQ(Made().FreshOfResult(0), 0u);
  EXPECT_EQ(Made().FreshOfResult(1), std::nullopt) << "a view of something older";
  EXPECT_EQ(Made().FreshBytes(0), 16);
  EXPECT_EQ(Made().op(), "aten.op.default");
}

}  // namespace
}  // namespace plimsoll::call_test
