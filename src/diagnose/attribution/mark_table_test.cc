#include "diagnose/attribution/mark_table.h"

#include <gtest/gtest.h>

#include "diagnose/attribution/analysed_trace.h"
#include "diagnose/recorded_history.h"

namespace plimsoll::mark_table_test {
namespace {

/// An event every ten microseconds, and marks between them.
class Marked {
 public:
  explicit Marked(int events) {
    timeline_.streams = {0};
    for (int i = 0; i < events; ++i) {
      const auto address = static_cast<Address>(1 + i) * 1024;
      timeline_.events.push_back(
          {.address = address, .size = 512, .time_us = 10 * i, .action = Action::kAlloc});
    }
  }

  Marked& Range(const std::string& name, TimeUs begin, TimeUs end) {
    Add(name, true, begin);
    Add(name, false, end);
    return *this;
  }
  Marked& Add(const std::string& name, bool start, TimeUs at) {
    timeline_.annotations.push_back(
        {.name = timeline_.stacks.strings.Intern(name), .start = start, .time_us = at});
    return *this;
  }
  History Recorded() const { return RecordedHistory(AnalysedTrace(timeline_)); }

 private:
  Timeline timeline_;
};

TEST(Stretches, AreWhatTheProgramMarked) {
  const History h = Marked(10).Range("train#1", 15, 45).Range("evaluate", 55, 75).Recorded();
  ASSERT_EQ(h.stretches.size(), 2u);
  EXPECT_EQ(h.stretches[0].name, "train");
  EXPECT_EQ(h.stretches[0].stage, Stage::kStep);
  EXPECT_EQ(h.stretches[0].first, 2);
  EXPECT_EQ(h.stretches[0].last, 4);
  EXPECT_EQ(h.stretches[1].stage, Stage::kEvaluation);
  EXPECT_FALSE(h.stretches[1].part);
  EXPECT_EQ(h.stretches_left_out, 0u);
}

TEST(Stretches, LieInOneAnotherButNotInMarksOfTorch) {
  Marked marked(10);
  marked.Add("Optimizer.step#Adam.step", true, 1).Add("train", true, 5).Range("loss", 15, 35);
  const History h =
      marked.Add("train", false, 60).Add("Optimizer.step#Adam.step", false, 70).Recorded();
  ASSERT_EQ(h.stretches.size(), 2u);
  EXPECT_EQ(h.stretches[0].depth, 0);
  EXPECT_EQ(h.stretches[1].name, "loss");
  EXPECT_EQ(h.stretches[1].depth, 1);
}

TEST(Stretches, WithoutEventsAreNone) {
  EXPECT_TRUE(Marked(10).Range("sleep", 31, 39).Recorded().stretches.empty());
}

TEST(Stretches, OfVeryManyTheInnerAndShortOnesAreLeftOut) {
  constexpr int kRanges = 9000;
  Marked marked(2 * kRanges);
  for (int i = 0; i < kRanges; ++i) marked.Range("work", 20 * i, 20 * i + 15);
  const History h = marked.Recorded();
  EXPECT_EQ(h.stretches.size() + h.stretches_left_out, std::size_t{kRanges});
  EXPECT_LT(h.stretches.size(), std::size_t{kRanges} / 2);
}

}  // namespace
}  // namespace plimsoll::mark_table_test
