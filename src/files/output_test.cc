#include "files/output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace plimsoll::output_test {
namespace {

namespace fs = std::filesystem;

class Output : public testing::Test {
 protected:
  Output() { fs::create_directories(folder_); }
  ~Output() override { fs::remove_all(folder_); }

  std::string Path(const char* name) const { return (folder_ / name).string(); }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::size_t FilesThere() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / "plimsoll_output";
};

TEST_F(Output, ReplacesAFileAndKeepsItsPermissions) {
  EXPECT_EQ(WriteFile(Path("a"), "one"), std::nullopt);
  ASSERT_EQ(::chmod(Path("a").c_str(), 0600), 0);
  EXPECT_EQ(WriteFile(Path("a"), "two"), std::nullopt);
  EXPECT_EQ(Read(Path("a")), "two");
  EXPECT_EQ(fs::status(Path("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(Output, WritesThroughALink) {
  fs::create_symlink("behind", Path("link"));
  EXPECT_EQ(WriteFile(Path("link"), "text"), std::nullopt);
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(Read(Path("behind")), "text");
}

TEST_F(Output, SaysWhyItCannot) {
  const std::optional<Error> error = WriteFile(Path("no/such/folder"), "text");
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->ToLine().find("No such file or directory"), std::string::npos);
  EXPECT_EQ(FilesThere(), 0u);
}

TEST_F(Output, ThreadsWriteOneFileAtOnce) {
  const mode_t before = ::umask(027);
  std::vector<std::thread> threads;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([this, letter] {
      for (int i = 0; i < 25; ++i) {
        fs::remove(Path("one"));
        EXPECT_EQ(WriteFile(Path("one"), std::string(10000, letter)), std::nullopt);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The last may have been removed by another thread, and then written again by that one.
  const std::string text = Read(Path("one"));
  EXPECT_EQ(text, std::string(10000, text.at(0)));
  EXPECT_EQ(fs::status(Path("one")).permissions(), static_cast<fs::perms>(0640));
  EXPECT_EQ(::umask(before), 027u);
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(Output, NothingIsLeftWithoutACommit) {
  EXPECT_EQ(WriteFile(Path("a"), "before"), std::nullopt);
  {
    FileWriter file(Path("a"));
    file.Write("half of");
  }
  EXPECT_EQ(Read(Path("a")), "before");
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(Output, TwoWritersDoNotMix) {
  FileWriter one(Path("a"));
  FileWriter other(Path("a"));
  one.Write("on");
  other.Write("oth");
  one.Write("e");
  other.Write("er");
  EXPECT_EQ(one.Commit(), std::nullopt);
  EXPECT_EQ(Read(Path("a")), "one");
  EXPECT_EQ(other.Commit(), std::nullopt);
  EXPECT_EQ(Read(Path("a")), "other");
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(Output, ANameAsLongAsOneMayBeIsWrittenWhole) {
  const std::string path = Path(std::string(250, 'n').c_str());
  EXPECT_EQ(WriteFile(path, "old"), std::nullopt);
  {
    FileWriter file(path);
    file.Write("half of");
  }
  EXPECT_EQ(Read(path), "old");
  EXPECT_EQ(WriteFile(path, "new"), std::nullopt);
  EXPECT_EQ(Read(path), "new");
  EXPECT_EQ(FilesThere(), 1u);
}

TEST_F(Output, WhereNoFileCanBeMadeTheOldOneStays) {
  const fs::path closed = Path("closed");
  fs::create_directories(closed);
  const std::string path = (closed / "state").string();
  EXPECT_EQ(WriteFile(path, "old"), std::nullopt);
  fs::permissions(closed, static_cast<fs::perms>(0555));
  // Root may write anywhere.
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(kNobody) != 0) GTEST_SKIP() << "no other user can be taken";
  const std::optional<Error> before = CheckWritable(path);
  const std::optional<Error> after = WriteFile(path, "new");
  EXPECT_EQ(::seteuid(user), 0);
  fs::permissions(closed, fs::perms::owner_all);
  ASSERT_TRUE(before.has_value());
  EXPECT_NE(before->ToLine().find("no new file can be made beside it"), std::string::npos);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(Read(path), "old");
}

TEST_F(Output, WhetherItCanBeWrittenIsKnownBeforeAndNothingIsLeft) {
  EXPECT_EQ(CheckWritable(Path("new")), std::nullopt);
  EXPECT_EQ(CheckWritable("/dev/null"), std::nullopt);
  EXPECT_TRUE(CheckWritable(Path("no/such/folder")).has_value());
  EXPECT_TRUE(CheckWritable(Path("")).has_value());  // a folder
  EXPECT_TRUE(CheckWritable(Path(std::string(300, 'n').c_str())).has_value());
  EXPECT_EQ(FilesThere(), 0u);
}

TEST_F(Output, OneFileByTwoNames) {
  EXPECT_EQ(WriteFile(Path("a"), "text"), std::nullopt);
  fs::create_hard_link(Path("a"), Path("b"));
  fs::create_symlink("a", Path("c"));
  EXPECT_TRUE(IsSameFile(Path("a"), Path("b")));
  EXPECT_TRUE(IsSameFile(Path("c"), Path("a")));
  EXPECT_FALSE(IsSameFile(Path("a"), Path("none")));
  EXPECT_FALSE(IsSameFile(Path("none"), Path("none")));
}

TEST_F(Output, ADiskThatIsFullIsAnErrorOnce) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  FileWriter file("/dev/full");
  file.Write("text");
  file.Write("more");
  const std::optional<Error> error = file.Commit();
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->ToLine().find("No space left"), std::string::npos);
}

TEST_F(Output, WritesIntoADevice) { EXPECT_EQ(WriteFile("/dev/null", "text"), std::nullopt); }

}  // namespace
}  // namespace plimsoll::output_test
