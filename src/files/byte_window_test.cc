#include "files/byte_window.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace plimsoll::byte_window_test {
namespace {

class ByteWindowTest : public testing::Test {
 protected:
  ~ByteWindowTest() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  const std::string path_ = testing::TempDir() + "byte_window_test." + std::to_string(::getpid());
};

std::string Numbers(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += std::to_string(i * 7919) + ' ';
  return text;
}

TEST_F(ByteWindowTest, WindowsFollowOneAnother) {
  const std::string text = Numbers(2'000'000);  // several pieces
  Write(text);
  std::optional<ByteWindow> stream = ByteWindow::OfFile(path_);
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->size().unpacked, text.size());
  std::string seen;
  while (!stream->window().empty()) {
    // Some of each window is left for the next: little, or more than there is room for before it.
    const std::size_t left = stream->IsLast() ? 0 : stream->window().size() / 5;
    const std::size_t done = stream->window().size() - left;
    seen += stream->window().substr(0, done);
    ASSERT_FALSE(stream->Advance(done, left + 1));
  }
  EXPECT_EQ(seen, text);
}

TEST_F(ByteWindowTest, AWindowIsAsLongAsWanted) {
  const std::string text = Numbers(3'000'000);
  Write(text);
  std::optional<ByteWindow> stream = ByteWindow::OfFile(path_);
  ASSERT_TRUE(stream);
  ASSERT_FALSE(stream->Advance(10, 100));
  ASSERT_FALSE(stream->Advance(0, 15'000'000));
  ASSERT_GE(stream->window().size(), 15'000'000u);
  EXPECT_EQ(stream->window(), std::string_view(text).substr(10, stream->window().size()));
  ASSERT_FALSE(stream->Advance(0, text.size() * 2));
  EXPECT_TRUE(stream->IsLast());
  EXPECT_EQ(stream->window(), std::string_view(text).substr(10));
}

TEST_F(ByteWindowTest, AFileThatIsCutShortMeanwhileEnds) {
  Write(Numbers(2'000'000));
  std::optional<ByteWindow> stream = ByteWindow::OfFile(path_);
  ASSERT_TRUE(stream);
  std::filesystem::resize_file(path_, 100'000);
  ASSERT_FALSE(stream->Advance(0, 1'000'000));
  EXPECT_TRUE(stream->IsLast());
  EXPECT_EQ(stream->window().size(), 100'000u);
}

TEST_F(ByteWindowTest, IsOfPlainFilesAlone) {
  EXPECT_FALSE(ByteWindow::OfFile("-"));
  EXPECT_FALSE(ByteWindow::OfFile(testing::TempDir()));
  EXPECT_FALSE(ByteWindow::OfFile("/dev/null"));
  EXPECT_FALSE(ByteWindow::OfFile(path_));
  Write("");
  EXPECT_FALSE(ByteWindow::OfFile(path_));
  Write("x");
  ASSERT_TRUE(ByteWindow::OfFile(path_));
  EXPECT_EQ(ByteWindow::OfFile(path_)->window(), "x");
}

TEST(ByteWindow, OfBytesInMemoryIsOneWindow) {
  const Result<Input> input = Input::FromMemory("x", "abc");
  ASSERT_TRUE(input.ok());
  ByteWindow stream(*input);
  EXPECT_EQ(stream.window(), "abc");
  EXPECT_TRUE(stream.IsLast());
  EXPECT_FALSE(stream.Advance(2, 100));
  EXPECT_EQ(stream.window(), "c");
}

}  // namespace
}  // namespace plimsoll::byte_window_test
