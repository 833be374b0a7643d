#include "launch/proc_files.h"

#include <gtest/gtest.h>

namespace plimsoll::proc_files_test {
namespace {

using namespace std::string_literals;

TEST(ProcFiles, ProgramIsNamedWithoutItsArguments) {
  EXPECT_EQ(ProgramIn("/usr/bin/python3\0-u\0/home/me/train.py\0--token=secret\0"s),
            "python3 train.py");
  EXPECT_EQ(ProgramIn("python\0-W\0ignore\0-m\0accelerate.run\0x\0"s), "python -m accelerate.run");
  EXPECT_EQ(ProgramIn("python3.12\0-c\0import secrets\0"s), "python3.12");
  EXPECT_EQ(ProgramIn("/opt/bin/Xorg\0-seat\0"s), "Xorg");
  EXPECT_EQ(ProgramIn("python3"s), "python3");
  EXPECT_EQ(ProgramIn(""s), "");
  EXPECT_EQ(ProgramIn(std::string(3, '\0')), "");
}

TEST(ProcFiles, StatOfAProcessWithAnyName) {
  const auto stat =
      ParseStat("812 (a) b (c)) S 800 812 812 0 -1 4194560 1 0 0 0 5 6 7 8 20 0 1 0 4242 1 2 3\n");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->name, "a) b (c)");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 800);
  EXPECT_EQ(stat->started, 4242);
}

TEST(ProcFiles, StatusOfADeadProcess) {
  std::string text = "7 (x) Z 1";
  for (int field = 5; field < 52; ++field) text += " 0";
  EXPECT_EQ(ParseStat(text + " 9\n")->status, 9);
}

TEST(ProcFiles, StatThatIsCut) {
  EXPECT_FALSE(ParseStat(""));
  EXPECT_FALSE(ParseStat("812 (python"));
  EXPECT_FALSE(ParseStat("812 (python) S 800"));
  EXPECT_FALSE(ParseStat(")("));
}

TEST(ProcFiles, Status) {
  const ProcStatus status =
      ParseStatus("Name:\tpt_data_worker\nVmPeak:\t 900 kB\nVmRSS:\t  600 kB\nRssShmem:\t 24 kB\n");
  EXPECT_EQ(status.name, "pt_data_worker");
  EXPECT_EQ(status.resident, 600 * kKiB);
  EXPECT_EQ(status.shared, 24 * kKiB);
  EXPECT_EQ(ParseStatus("Name:\tkthreadd\n").resident, 0);
}

TEST(ProcFiles, Figures) {
  EXPECT_EQ(KilobytesAfter("Rss: 7 kB\nPss:  12 kB\n", "Pss:"), 12 * kKiB);
  EXPECT_FALSE(KilobytesAfter("SwapPss: 12 kB\n", "Pss:"));
  EXPECT_FALSE(KilobytesAfter("Pss: 99999999999999 kB\n", "Pss:"));
  EXPECT_EQ(CountAfter("oom 5\noom_kill 3\n", "oom_kill"), 3);
  EXPECT_FALSE(CountAfter("oom_kill_disable 0\n", "oom_kill"));
}

TEST(ProcFiles, Rank) {
  EXPECT_EQ(RankInEnvironment("A=b\0RANK=3\0LOCAL_RANK=1\0"s), 3);
  EXPECT_EQ(RankInEnvironment("SLURM_PROCID=12\0"s), 12);
  EXPECT_FALSE(RankInEnvironment("RANK=x\0NORANK=2\0"s));
  EXPECT_FALSE(RankInEnvironment("RANK=99999999999\0"s));
}

}  // namespace
}  // namespace plimsoll::proc_files_test
