#include "files/byte_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "files/packed_for_tests.h"

namespace plimsoll::byte_stream_test {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    path = (std::filesystem::temp_directory_path() /
            ("plimsoll_stream." + std::to_string(::getpid()) + "." + std::to_string(number_++)))
               .string();
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  std::string path;

 private:
  static inline int number_ = 0;
};

/// Text that does not repeat itself, longer than what is read at once.
std::string LongText() {
  std::string text;
  unsigned state = 1;
  while (text.size() < 1'500'000) {
    state = state * 1103515245 + 12345;
    text += "line " + std::to_string(state) + "\n";
  }
  return text;
}

/// Files of /proc have no size, and some never end.
TEST(OpenToRead, RefusesWhatTheSystemMakesUp) {
  for (const char* path : {"/proc/self/maps", "/proc/self/pagemap", "/dev/zero"}) {
    if (!std::filesystem::exists(path)) continue;
    EXPECT_FALSE(ByteStream::Open(path).ok()) << path;
  }
  const TemporaryFile empty("");
  EXPECT_TRUE(ByteStream::Open(empty.path).ok());
  EXPECT_TRUE(ByteStream::Open("/dev/null").ok());
}

Result<std::string> ReadInPieces(const std::string& path, std::size_t piece) {
  Result<ByteStream> stream = ByteStream::Open(path);
  if (!stream) return stream.error();
  std::string all;
  std::string buffer(piece, '\0');
  while (true) {
    const Result<std::size_t> n = stream->Fill(buffer.data(), buffer.size());
    if (!n) return n.error();
    all.append(buffer, 0, *n);
    if (*n < piece) return all;
  }
}

TEST(ByteStream, UnpacksInPieces) {
  const std::string text = LongText();
  for (const std::string& packed : {text, Gzip(text), Xz(text), Zstd(text)}) {
    const TemporaryFile file(packed);
    for (std::size_t piece : {std::size_t{1000}, std::size_t{65536}, std::size_t{1} << 21}) {
      const Result<std::string> read = ReadInPieces(file.path, piece);
      ASSERT_TRUE(read.ok()) << read.error().ToLine();
      EXPECT_EQ(*read == text, true) << piece;
    }
  }
}

TEST(ByteStream, SeveralPartsAreOneText) {
  const std::string text = LongText();
  for (auto* pack : {Gzip, Xz, Zstd}) {
    const TemporaryFile file(pack(text) + pack("the end"));
    const Result<std::string> read = ReadInPieces(file.path, 4096);
    ASSERT_TRUE(read.ok()) << read.error().ToLine();
    EXPECT_EQ(*read == text + "the end", true);
  }
}

TEST(ByteStream, WhatEndsTooEarlyIsSaid) {
  const std::string text = LongText();
  for (auto* pack : {Gzip, Xz, Zstd}) {
    std::string packed = pack(text);
    packed.resize(packed.size() / 2);
    const TemporaryFile file(packed);
    const Result<std::string> read = ReadInPieces(file.path, 4096);
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().ToLine().find("ends too early"), std::string::npos)
        << read.error().ToLine();
  }
}

TEST(ByteStream, NothingIsFine) {
  const TemporaryFile file("");
  const Result<std::string> read = ReadInPieces(file.path, 16);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, "");
  EXPECT_FALSE(ByteStream::Open("/nonexistent/file").ok());
  EXPECT_FALSE(ByteStream::Open("/").ok());
}

}  // namespace
}  // namespace plimsoll::byte_stream_test
