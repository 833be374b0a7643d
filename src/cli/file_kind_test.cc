#include "cli/file_kind.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "cli/command/command_text.h"
#include "files/output.h"

namespace plimsoll::file_kind_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

class FileKindTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_kind_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  FileKind KindWith(const std::string& name, const std::string& text) const {
    EXPECT_FALSE(WriteFile(Path(name), text));
    return KindOf(Path(name));
  }

  fs::path folder_;
};

TEST_F(FileKindTest, ByContent) {
  using enum FileKind;
  EXPECT_EQ(KindWith("a", R"({"schema":"plimsoll.step/1","torch":"2.11"})"), kStep);
  EXPECT_EQ(KindWith("a", R"({ "schema": "plimsoll.plan/1" })"), kPlan);
  EXPECT_EQ(KindWith("a", R"({"schema": "plimsoll.explain/1"})"), kAnswer);
  EXPECT_EQ(KindWith("a", R"({"schema": "plimsoll.calibration/2"})"), kCalibration);
  EXPECT_EQ(KindWith("a", "<!DOCTYPE html><meta name=\"generator\" content=\"plimsoll\">"), kPage);
  EXPECT_EQ(KindWith("a", "\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\"}}"s), kWeights);
  EXPECT_EQ(KindWith("a", "PK\x03\x04..........archive/data.pkl"), kWeights);
  EXPECT_EQ(KindWith("config.json", R"({"architectures": ["X"], "model_type": "llama"})"),
            kConfiguration);
  EXPECT_EQ(KindWith("train.log", R"({"event": "start", "model_type": "llama"})"), kText);
  EXPECT_EQ(KindWith("a", R"({"cells": [], "nbformat": 4})"), kNotebook);
  EXPECT_EQ(KindWith("a", "id,lower,upper,size\n1,0,1,8\n"), kBuffers);
  EXPECT_EQ(KindWith("a", "\x80\x04\x95"), kTrace);
  EXPECT_EQ(KindWith("a", "torch.OutOfMemoryError: CUDA out of memory."), kText);
  EXPECT_EQ(KindWith("a", ""), kText);
  EXPECT_EQ(KindWith("train.py", "import torch  # CUDA out of memory"), kScript);
  EXPECT_EQ(KindWith("shot.png", "\x89PNG\r\n\x1a\n"), kImage);
  EXPECT_EQ(KindOf(Path("none")), kMissing);
  EXPECT_EQ(KindOf("-"), kText);
  EXPECT_EQ(KindOf("hf:config.json"), kConfiguration);
}

TEST_F(FileKindTest, Packed) {
  const std::string data = PLIMSOLL_TEST_DATA;
  EXPECT_EQ(KindOf(data + "/steps/mlp_adamw_fp32.step.json.gz"), FileKind::kStep);
  EXPECT_EQ(KindOf(data + "/snapshots/mlp_adam_defaults.pickle.xz"), FileKind::kTrace);
}

TEST_F(FileKindTest, Folders) {
  EXPECT_EQ(KindOf(folder_.string()), FileKind::kFolder);
  EXPECT_TRUE(WrongForRecords(folder_.string()));
  ASSERT_FALSE(WriteFile(Path("rank1.pickle"), "x"));
  ASSERT_FALSE(WriteFile(Path("rank0.pickle"), "x"));
  ASSERT_FALSE(WriteFile(Path("rank2.pickle.part"), "x"));
  EXPECT_EQ(KindOf(folder_.string()), FileKind::kRunFolder);
  EXPECT_EQ(FilesBehind(folder_.string()).snapshots,
            (std::vector<std::string>{Path("rank0.pickle"), Path("rank1.pickle")}));
  const Result<std::string> one = RecordFile(folder_.string());
  ASSERT_FALSE(one);
  EXPECT_EQ(one.error().message, "2 snapshots are in it");
}

TEST_F(FileKindTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(KindOf(Path("pipe")), FileKind::kText);
}

TEST_F(FileKindTest, TheRightCommandIsNamed) {
  ASSERT_FALSE(WriteFile(Path("train.py"), ""));
  const std::optional<Error> wrong = WrongForRecords(Path("train.py"));
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->hint, "plimsoll run -- python " + Path("train.py"));
  EXPECT_FALSE(WrongForRecords(Path("none")));  // whoever reads it says so
}

TEST_F(FileKindTest, APlanIsAppliedOnlyWhereItHasAWay) {
  const auto uses = [&](const std::string& ways) {
    EXPECT_FALSE(
        WriteFile(Path("plan.json"), R"({"schema": "plimsoll.plan/1", "ways": )" + ways + "}"));
    return UsesOf(FileKind::kPlan, Path("plan.json"));
  };
  EXPECT_TRUE(uses("[]").empty());
  EXPECT_TRUE(uses(R"([{"batch": 8, "passes": 1, "set": {}}])").empty());
  EXPECT_TRUE(uses("[").empty());
  EXPECT_EQ(uses(R"([{"batch": 8, "passes": 1, "set": {"tf32": "on"}}])").size(), 2U);
  const std::vector<NextStep> both =
      uses(R"([{"batch": 8, "passes": 2, "set": {"accumulation": "2"}}])");
  ASSERT_EQ(both.size(), 3U);
  EXPECT_EQ(both[0].command,
            "applied = plimsoll.apply(\"" + Path("plan.json") + "\", model, optimizer)");
  EXPECT_EQ(both[1].command, "for x, y in applied.micro_batches((x, y)):");
  EXPECT_EQ(both[2].command, "plimsoll run -- python train.py");
}

TEST(CommandText, WordsAreQuotedWhereAShellWouldReadThem) {
  EXPECT_EQ(Quoted("a/b.py"), "a/b.py");
  EXPECT_EQ(Quoted("RTX 4090"), "'RTX 4090'");
  EXPECT_EQ(Quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(Quoted("$(x)"), "'$(x)'");
  EXPECT_EQ(Quoted(""), "''");
  EXPECT_EQ(CommandText("run").Plain("--").Words({"python", "a b.py", "{batch}"}).str(),
            "plimsoll run -- python 'a b.py' {batch}");
}

}  // namespace
}  // namespace plimsoll::file_kind_test
