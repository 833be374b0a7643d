#include "launch/host_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "files/output.h"

namespace plimsoll::host_limits_test {
namespace {

namespace fs = std::filesystem;

class HostLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_limits_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    Write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 0 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_FALSE(WriteFile((root_ / name).string(), text));
  }
  HostLimits Limits() const {
    return HostLimits({.proc = (root_ / "proc").string(),
                       .groups = (root_ / "groups").string(),
                       .shm = (root_ / "none").string()});
  }
  HostRecord Described() const {
    HostRecord record;
    Limits().Describe(record);
    return record;
  }
  HostSample Measured() const {
    HostSample sample;
    Limits().Measure(sample);
    return sample;
  }

  fs::path root_;
};

TEST_F(HostLimitsTest, NoGroups) {
  EXPECT_EQ(Described().memory, 1000 * kKiB);
  EXPECT_FALSE(Described().group);
  EXPECT_EQ(Measured().available, 400 * kKiB);
  EXPECT_FALSE(Measured().group);
  EXPECT_FALSE(Measured().kills.group);
}

TEST_F(HostLimitsTest, VersionTwoTheTightestLimitAbove) {
  Write("proc/self/cgroup", "0::/pod/job\n");
  Write("proc/vmstat", "pgfault 7\noom_kill 9\n");
  Write("groups/pod/memory.max", "500000\n");
  Write("groups/pod/memory.current", "300000\n");
  Write("groups/pod/memory.stat", "anon 1\ninactive_file 20000\nactive_file 30000\n");
  Write("groups/pod/job/memory.max", "max\n");
  Write("groups/pod/job/memory.current", "1000\n");
  Write("groups/pod/job/memory.events", "oom 3\noom_kill 2\n");
  const HostRecord record = Described();
  ASSERT_TRUE(record.group);
  EXPECT_EQ(record.group->path, "/pod");
  EXPECT_EQ(record.group->limit, 500000);
  EXPECT_EQ(record.kills.group, 2);
  EXPECT_EQ(record.kills.machine, 9);
  EXPECT_EQ(Measured().group, 250000);
}

TEST_F(HostLimitsTest, VersionTwoInAContainerThatSeesItselfAsTheRoot) {
  Write("proc/self/cgroup", "0::/\n");
  Write("groups/memory.max", "600000\n");
  Write("groups/memory.current", "1000\n");
  EXPECT_EQ(Described().group->limit, 600000);
}

TEST_F(HostLimitsTest, VersionOne) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/77\n0::/\n");
  // What is mounted is the container's own: the host's path is not there.
  Write("groups/memory/memory.limit_in_bytes", "700000\n");
  Write("groups/memory/memory.usage_in_bytes", "1000\n");
  Write("groups/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(Described().group->limit, 700000);
  EXPECT_EQ(Described().group->path, "/docker/77");
  EXPECT_EQ(Measured().kills.group, 4);
}

TEST_F(HostLimitsTest, NoLimitIsNone) {
  Write("proc/self/cgroup", "4:memory:/\n");
  Write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("groups/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_FALSE(Described().group->limit);
  // More than the machine has is none either.
  Write("groups/memory/memory.limit_in_bytes", "2000000\n");
  EXPECT_FALSE(Described().group->limit);
}

}  // namespace
}  // namespace plimsoll::host_limits_test
