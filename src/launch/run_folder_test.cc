#include "launch/run_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "files/output.h"

namespace plimsoll::run_folder_test {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_folder_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    wanted_ = (root_ / "run").string();
  }
  void TearDown() override { fs::remove_all(root_); }

  /// What is made where the wanted folder is as it is now.
  RunFolder Made() {
    const Result<RunFolder> folder = MakeRunFolder(wanted_);
    EXPECT_TRUE(folder) << (folder ? "" : folder.error().ToLine());
    return folder ? *folder : RunFolder{};
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::lstat(path.c_str(), &found), 0);
    return found.st_mode & 07777;
  }

  fs::path root_;
  std::string wanted_;
};

TEST_F(RunFolderTest, ANewFolderIsItsOwnersAlone) {
  const RunFolder folder = Made();
  EXPECT_EQ(folder.path, wanted_);
  EXPECT_EQ(folder.instead, "");
  EXPECT_EQ(folder.hook, wanted_ + "/hook");
  EXPECT_EQ(ModeOf(wanted_), 0700u);
  EXPECT_EQ(ModeOf(folder.hook), 0700u);
  RemoveHook(folder);
  EXPECT_FALSE(fs::exists(wanted_));
}

TEST_F(RunFolderTest, AnEmptyFolderOfOnesOwnIsTakenAndClosed) {
  fs::create_directory(wanted_);
  ASSERT_EQ(::chmod(wanted_.c_str(), 0755), 0);
  EXPECT_EQ(Made().path, wanted_);
  EXPECT_EQ(ModeOf(wanted_), 0700u);
}

TEST_F(RunFolderTest, WhereSomethingIsInItTheNextBesideIsTaken) {
  EXPECT_EQ(Made().path, wanted_);
  const RunFolder second = Made();
  EXPECT_EQ(second.path, wanted_ + ".2");
  EXPECT_EQ(second.instead, wanted_ + " is not empty");
  EXPECT_EQ(Made().path, wanted_ + ".3");
}

TEST_F(RunFolderTest, AFileIsNoFolder) {
  ASSERT_FALSE(WriteFile(wanted_, "text"));
  EXPECT_EQ(Made().instead, wanted_ + " is no folder");
}

TEST_F(RunFolderTest, ALinkIsNotFollowed) {
  fs::create_directory(root_ / "elsewhere");
  fs::create_directory_symlink(root_ / "elsewhere", wanted_);
  EXPECT_EQ(Made().instead, wanted_ + " is a link");
  EXPECT_TRUE(fs::is_empty(root_ / "elsewhere"));
}

TEST_F(RunFolderTest, AFolderThatOthersCanWriteIsNotTaken) {
  fs::create_directory(wanted_);
  ASSERT_EQ(::chmod(wanted_.c_str(), 0777), 0);
  EXPECT_EQ(Made().instead, wanted_ + " can be written by others");
}

TEST_F(RunFolderTest, AFolderOfAnotherUserIsNotTaken) {
  fs::create_directory(wanted_);
  constexpr uid_t kNobody = 65534;
  if (::chown(wanted_.c_str(), kNobody, kNobody) != 0) GTEST_SKIP() << "only root can give it away";
  EXPECT_EQ(Made().instead, wanted_ + " belongs to another user");
}

TEST_F(RunFolderTest, TheHookIsWhereNobodyCanReplaceIt) {
  ASSERT_EQ(::chmod(root_.c_str(), 0777), 0);
  const RunFolder folder = Made();
  EXPECT_EQ(folder.path, wanted_);
  EXPECT_NE(folder.hook, wanted_ + "/hook");
  EXPECT_EQ(ModeOf(folder.hook), 0700u);
  RemoveHook(folder);
  EXPECT_FALSE(fs::exists(folder.hook));
}

TEST_F(RunFolderTest, AColonCannotStandInPythonPath) {
  wanted_ = (root_ / "a:b").string();
  const RunFolder folder = Made();
  EXPECT_EQ(folder.path, wanted_);
  EXPECT_EQ(folder.hook.find(':'), std::string::npos);
  RemoveHook(folder);
}

TEST_F(RunFolderTest, ALogThatIsAPipeIsNotWaitedFor) {
  const RunFolder folder = Made();
  ASSERT_EQ(::mkfifo((wanted_ + "/log.txt").c_str(), 0600), 0);
  EXPECT_TRUE(HookComplaints(folder).empty());
}

}  // namespace
}  // namespace plimsoll::run_folder_test
