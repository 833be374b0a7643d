#include "launch/processes.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "files/output.h"

namespace plimsoll::processes_test {
namespace {

namespace fs = std::filesystem;

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_job_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_.path = pattern;
  }
  void TearDown() override { fs::remove_all(folder_.path); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((fs::path(folder_.path) / name).parent_path());
    ASSERT_FALSE(WriteFile((fs::path(folder_.path) / name).string(), text));
  }
  /// A process that left a snapshot; `more` are further keys.
  void Leave(const std::string& stem, const std::string& more) {
    Write(stem + ".pickle", "x");
    Write(stem + ".json", R"({"schema": "plimsoll.process/1", "snapshots": [{"file": ")" + stem +
                              R"(.pickle", "bytes": 1}], )" + more + "}");
  }
  std::string Explained() {
    std::string names;
    const FilesOfRun files = FilesToExplain(folder_, ReadProcesses(folder_));
    for (const auto& list : {files.snapshots, files.error_texts}) {
      for (const std::string& file : list) names += fs::path(file).filename().string() + " ";
    }
    return names;
  }

  RunFolder folder_;
};

TEST_F(Processes, RanksAreExplainedTogetherWithTheirTexts) {
  Leave("a", R"("rank": 1, "began": 5, "ooms": 1, "error_text": "a.error.txt",
                "ended": {"how": "exception", "type": "OutOfMemoryError"})");
  Write("a.error.txt", "CUDA out of memory");
  Leave("b", R"("rank": 0, "began": 6, "ended": {"how": "signal", "signal": "SIGTERM"})");
  Leave("c", R"("rank": null, "began": 1)");
  const std::vector<RecordedProcess> all = ReadProcesses(folder_);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].rank, 0);
  EXPECT_EQ(all[0].end, ProcessEnd::kSignal);
  EXPECT_EQ(all[0].detail, "SIGTERM");
  EXPECT_EQ(all[1].detail, "OutOfMemoryError");
  EXPECT_EQ(all[2].end, ProcessEnd::kUnknown);
  EXPECT_EQ(Explained(), "b.pickle a.pickle a.error.txt ");
}

TEST_F(Processes, OfARankTheLastStartAndWhatRanOut) {
  Leave("first", R"("rank": 0, "restart": 0, "began": 1, "ooms": 1)");
  Leave("parent", R"("rank": 0, "restart": 1, "began": 2)");
  Leave("helper", R"("rank": 0, "restart": 1, "began": 3)");
  EXPECT_EQ(Explained(), "parent.pickle ");
  Leave("helper", R"("rank": 0, "restart": 1, "began": 3, "ooms": 2)");
  EXPECT_EQ(Explained(), "helper.pickle ");
  Leave("odd", R"("rank": 0, "restart": -9223372036854775808, "began": 0, "ooms": 3)");
  EXPECT_EQ(Explained(), "helper.pickle ");
}

TEST_F(Processes, WithoutRanksTheOneThatRanOutElseTheLongest) {
  Leave("short", R"("began": 5, "wrote": 6)");
  Leave("long", R"("began": 1, "wrote": 4)");
  EXPECT_EQ(Explained(), "long.pickle ");
  Leave("short", R"("began": 5, "wrote": 6, "ooms": 1)");
  EXPECT_EQ(Explained(), "short.pickle ");
}

TEST_F(Processes, OfSeveralJobsTheLastThatRanOut) {
  Leave("a0", R"("rank": 0, "job": "7.0", "began": 1, "ooms": 1)");
  Leave("a1", R"("rank": 1, "job": "7.0", "began": 2)");
  Leave("b0", R"("rank": 0, "job": "8.0", "began": 3)");
  EXPECT_EQ(Explained(), "a0.pickle a1.pickle ");
  Leave("b1", R"("rank": 1, "job": "8.0", "began": 4, "ooms": 1)");
  EXPECT_EQ(Explained(), "b0.pickle b1.pickle ");
}

TEST_F(Processes, ThoseThatAreLeftOutAreNamed) {
  Leave("a", R"("pid": 4, "host": "n1", "program": "train.py", "began": 1, "wrote": 9)");
  Leave("b", R"("pid": 5, "host": "n2\u001b", "program": "ray::A.f", "began": 1, "wrote": 2)");
  EXPECT_EQ(FilesToExplain(folder_, ReadProcesses(folder_)).others,
            "1 more process recorded there: pid 5 on n2? (ray::A.f); give a snapshot by its name "
            "to explain it");
}

TEST_F(Processes, WhatIsMissingIsNamed) {
  const auto missing = [&] { return FilesToExplain(folder_, ReadProcesses(folder_)).missing; };
  Leave("a", R"("pid": 4, "host": "n1", "program": "train.py", "ended": {"how": "exit"})");
  EXPECT_EQ(missing(), "");
  Leave("b", R"("pid": 5, "host": "n2", "program": "train.py", "ended": null)");
  EXPECT_EQ(missing(), "pid 5 on n2 (train.py) has no end in the record: killed or crashed");
  Write("c.json", R"({"schema": "plimsoll.process/1", "pid": 6, "host": "n2"})");
  EXPECT_EQ(missing(),
            "pid 5 on n2 (train.py), pid 6 on n2 have no end in the record: killed or crashed, "
            "1 without a snapshot");
  Write("d.json", R"({"schema": "plimsoll.process/1", "pid": 7, "ended": {"how": "exit"}})");
  EXPECT_TRUE(missing().ends_with("; pid 7 has no snapshot in the record")) << missing();
}

TEST_F(Processes, NothingOutsideOfTheFolderAndNothingMalformed) {
  Write("outside.json", R"({"schema": "plimsoll.process/1",
      "snapshots": [{"file": "../x.pickle"}, {"file": "/etc/passwd"}, {"file": "gone.pickle"}, 7]})");
  Write("cut.json", R"({"schema": "plimsoll.proc)");
  Write("types.json", R"({"schema": "plimsoll.process/1", "rank": "0", "pid": [], "ended": 7,
      "snapshots": {}, "host": null, "seconds": "x"})");
  Write("other.json", "[1]");
  const std::vector<RecordedProcess> all = ReadProcesses(folder_);
  ASSERT_EQ(all.size(), 2u);
  for (const RecordedProcess& process : all) EXPECT_EQ(process.Main(), nullptr);
  EXPECT_EQ(Explained(), "");
}

TEST_F(Processes, WhatWasSetAsideIsNotTheMainSnapshot) {
  Write("ooms/a.first.pickle", "x");
  Write("a.pickle", "x");
  Write("a.json", R"({"schema": "plimsoll.process/1", "snapshots":
      [{"file": "ooms/a.first.pickle"}, {"file": "a.pickle", "full": true}]})");
  const std::vector<RecordedProcess> all = ReadProcesses(folder_);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].snapshots.size(), 2u);
  EXPECT_TRUE(all[0].Main()->full);
  EXPECT_EQ(Explained(), "a.pickle ");
}

}  // namespace
}  // namespace plimsoll::processes_test
