#include "launch/process_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "files/output.h"

namespace plimsoll::process_tree_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

/// A /proc of files.
class ProcessTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_tree_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  struct Made {
    int pid = 0;
    int parent = 0;
    std::string name = "python";
    std::string words = "python\0train.py\0"s;
    std::string variables = {};
    int resident_kb = 1000;
  };
  void Make(const Made& p) {
    const fs::path folder = root_ / std::to_string(p.pid);
    fs::create_directories(folder);
    const auto write = [&](const char* name, const std::string& text) {
      ASSERT_FALSE(WriteFile((folder / name).string(), text));
    };
    write("stat", fmt::format("{} ({}) S {} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {} 0 0\n", p.pid,
                              p.name, p.parent, 100 + p.pid));
    write("status",
          fmt::format("Name:\t{}\nVmRSS:\t{} kB\nRssShmem:\t 8 kB\n", p.name, p.resident_kb));
    write("cmdline", p.words);
    write("environ", p.variables);
    write("smaps_rollup",
          fmt::format("Rss: {} kB\nPss: {} kB\n", p.resident_kb, p.resident_kb / 2));
  }
  void End(int pid) { fs::remove_all(root_ / std::to_string(pid)); }

  ProcessTree Tree() const { return ProcessTree(10, {.proc = root_.string()}); }

  fs::path root_;
};

TEST_F(ProcessTreeTest, DescendantsAlone) {
  Make({.pid = 1, .words = "init\0"s});
  Make({.pid = 10, .parent = 1});
  Make({.pid = 8, .parent = 12, .words = "sh\0"s});  // numbers have come round
  Make({.pid = 12, .parent = 10});
  Make({.pid = 13, .parent = 1});
  ProcessTree tree = Tree();
  tree.Look({}, 0);
  EXPECT_EQ(tree.processes().size(), 3u);
  EXPECT_EQ(tree.processes().at(10).process.role, HostRole::kMain);
  EXPECT_EQ(tree.processes().at(12).process.role, HostRole::kWorker);
  EXPECT_EQ(tree.processes().at(12).share.resident, 1000 * kKiB);
  EXPECT_EQ(tree.processes().at(12).share.shared, 8 * kKiB);
  // Its parent is gone, and it is still of the job.
  End(12);
  Make({.pid = 8, .parent = 1, .words = "sh\0"s});
  tree.Look({}, 1);
  EXPECT_EQ(tree.processes().size(), 2u);
  EXPECT_TRUE(tree.processes().contains(8));
}

TEST_F(ProcessTreeTest, RolesAndNumbers) {
  Make({.pid = 10, .parent = 1, .words = "python\0-m\0torchrun\0"s});
  for (const int rank : {0, 1}) {
    const std::string variables = fmt::format("RANK={}", rank) + "\0"s;
    Make({.pid = 20 + rank, .parent = 10, .variables = variables});
    for (const int worker : {0, 1}) {
      Make({.pid = 30 + 10 * rank + worker,
            .parent = 20 + rank,
            .name = worker == 0 ? "pt_data_worker" : "python",
            .variables = variables});
    }
  }
  Make({.pid = 50,
        .parent = 20,
        .words = "python\0-c\0from multiprocessing.resource_tracker import main\0"s});
  Make({.pid = 51,
        .parent = 20,
        .words = "python\0-c\0from multiprocessing.spawn import spawn_main\0"s});
  ProcessTree tree = Tree();
  tree.Look({}, 0);
  const auto& all = tree.processes();
  EXPECT_EQ(all.at(21).process.role, HostRole::kRank);
  EXPECT_EQ(all.at(21).process.rank, 1);
  EXPECT_EQ(all.at(40).process.role, HostRole::kLoaderWorker);
  EXPECT_EQ(all.at(40).process.rank, 1);
  EXPECT_EQ(all.at(40).process.number, 0);
  EXPECT_EQ(all.at(41).process.role, HostRole::kWorker);
  EXPECT_EQ(all.at(41).process.number, 1);
  EXPECT_EQ(all.at(50).process.role, HostRole::kOther);
  EXPECT_EQ(all.at(51).process.role, HostRole::kWorker);
  // It has named itself by now, and another comes in the place of one that is gone.
  Make({.pid = 41, .parent = 21, .name = "pt_data_worker", .variables = "RANK=1\0"s});
  End(40);
  tree.Look({}, 1);
  Make({.pid = 60, .parent = 21, .name = "pt_data_worker", .variables = "RANK=1\0"s});
  tree.Look({}, 2);
  EXPECT_EQ(all.at(41).process.role, HostRole::kLoaderWorker);
  EXPECT_TRUE(all.at(41).news);
  EXPECT_EQ(all.at(60).process.number, 0);
}

TEST_F(ProcessTreeTest, WhatAProcessReportsCounts) {
  Make({.pid = 10, .parent = 1});
  Make({.pid = 11, .parent = 10});
  ProcessTree tree = Tree();
  tree.Look({{.pid = 11, .rank = 4, .pinned = 77}}, 0);
  EXPECT_EQ(tree.processes().at(11).process.role, HostRole::kRank);
  EXPECT_EQ(tree.processes().at(11).process.rank, 4);
  EXPECT_EQ(tree.processes().at(11).share.pinned, 77);
}

TEST_F(ProcessTreeTest, TheProportionalSizeOfLargeOnesNowAndThen) {
  Make({.pid = 10, .parent = 1, .resident_kb = 200'000});
  Make({.pid = 11, .parent = 10, .resident_kb = 1000});
  ProcessTree tree = Tree();
  tree.Look({}, 0);
  EXPECT_EQ(tree.processes().at(10).share.proportional, 100'000 * kKiB);
  EXPECT_FALSE(tree.processes().at(11).share.proportional);
  tree.Look({}, 1);
  EXPECT_FALSE(tree.processes().at(10).share.proportional);
  tree.Look({}, 1e9);
  EXPECT_TRUE(tree.processes().at(10).share.proportional);
}

}  // namespace
}  // namespace plimsoll::process_tree_test
