#include "launch/host_log.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "files/json.h"
#include "launch/proc_files.h"

namespace plimsoll::host_log_test {
namespace {

namespace fs = std::filesystem;

class HostLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_hostlog_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path() const { return (folder_ / kHostFile).string(); }
  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    const std::string text = ReadKernelFile(Path(), 1 << 20).value_or("");
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      lines.push_back(ParseOwnJson(text.substr(at, end - at)));
      EXPECT_TRUE(lines.back().is_object());
      at = end + 1;
    }
    return lines;
  }

  fs::path folder_;
};

HostSample At(double time, std::size_t pid, Bytes resident) {
  return {.time = time, .held = {{.process = pid, .resident = resident}}};
}

TEST_F(HostLogTest, IsThereAfterEachFlush) {
  HostLog log(Path());
  log.Header({.host = "node1"});
  log.Flush();
  EXPECT_EQ(Lines().size(), 1u);
  log.Process({.pid = 7, .role = HostRole::kLoaderWorker, .number = 3, .rank = 0});
  HostSample sample = At(5.1234, 7, 100);
  sample.held[0].pinned = 8;
  log.Sample(sample);
  log.Flush();
  const std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["role"], "loader_worker");
  EXPECT_EQ(lines[1]["number"], 3);
  EXPECT_EQ(lines[2]["time"], 5.123);
  EXPECT_EQ(lines[2]["held"], Json({Json({7, 100, 0, nullptr, 8})}));
}

TEST_F(HostLogTest, StaysSmallAndKeepsTheEndThePeakAndWhoWasKilled) {
  HostLog log(Path(), 20'000);
  log.Header({.host = "node1"});
  log.Process({.pid = 1, .role = HostRole::kMain});
  log.Process({.pid = 2});
  log.Sample(At(0, 2, 5));
  log.Process({.pid = 3});
  log.Sample(At(0.5, 3, 4));
  log.Death(2, {.time = 1, .code = 0});
  log.Death(3, {.time = 1, .signal = 9});
  for (int second = 1; second <= 5000; ++second) {
    log.Sample(At(second, 1, second == 1700 ? 1'000'000 : 1000));
    log.Flush();
  }
  EXPECT_LT(fs::file_size(Path()), 21'000u);
  const std::vector<Json> lines = Lines();
  EXPECT_EQ(lines.front()["host"], "node1");
  double last = -1;
  bool peak = false;
  bool quiet = false;
  bool killed = false;
  int samples = 0;
  for (const Json& line : lines) {
    quiet |= line["process"] == 2 || line["gone"] == 2;
    killed |= line["gone"] == 3;
    if (!line.contains("held")) continue;
    ++samples;
    EXPECT_GT(*line["time"].number(), last);
    last = *line["time"].number();
    peak |= last == 1700;
  }
  EXPECT_EQ(last, 5000);
  EXPECT_GT(samples, 50);
  EXPECT_TRUE(peak);
  EXPECT_FALSE(quiet);
  EXPECT_TRUE(killed);
}

TEST_F(HostLogTest, AFolderThatIsGoneIsNoFailure) {
  HostLog log((folder_ / "none" / "host.jsonl").string());
  log.Header({});
  log.Sample(At(1, 1, 1));
  log.Flush();
}

}  // namespace
}  // namespace plimsoll::host_log_test
