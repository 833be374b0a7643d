#include "readers/error_text/log_reader.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "readers/error_text/testing.h"

namespace plimsoll::log_reader_test {
namespace {

class LogFile {
 public:
  explicit LogFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() /
               ("plimsoll_log." + std::to_string(::getpid())))
                  .string()) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~LogFile() { std::filesystem::remove(path_); }

  Recording Read() const {
    Result<ByteStream> stream = ByteStream::Open(path_);
    EXPECT_TRUE(stream.ok());
    Result<Recording> recording = ReadLog(*stream, "");
    EXPECT_TRUE(recording.ok());
    return recording.ok() ? std::move(*recording) : Recording{};
  }

 private:
  std::string path_;
};

std::string Steps(int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "2025-06-01 12:00:00 step " + std::to_string(first + i) + " loss 2.31 | mem 61.2GiB\n";
  }
  return text;
}

std::string Crash(int rank) {
  const std::string mark = "[rank" + std::to_string(rank) + "]: ";
  return mark + "Traceback (most recent call last):\n" + mark +
         "  File \"/home/me/train.py\", line " + std::to_string(10 + rank) + ", in main\n" + mark +
         "    optimizer.step()\n" + mark +
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " +
         std::to_string(rank + 1) + ".50 GiB. GPU " + std::to_string(rank % 8) +
         " has a total capacity of 79.15 GiB of which 1.10 GiB is free. Including non-PyTorch "
         "memory, this process has 78.00 GiB memory in use. Of the allocated memory 76.00 GiB is "
         "allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated.\n";
}

/// A log over several windows, with crashes everywhere, also across their ends.
std::string LongLog() {
  std::string text;
  for (int rank = 0; rank < 40; ++rank) {
    text += Steps(rank * 7000, 6000 + rank * 37);
    text += Crash(rank);
  }
  return text;
}

TEST(LogReader, AStreamReadsAsTheWholeText) {
  const std::string text = LongLog();
  ASSERT_GT(text.size(), std::size_t{12} << 20);
  const Recording whole = ReadText(text);
  const Recording streamed = LogFile(text).Read();
  ASSERT_EQ(whole.messages.size(), 40u);
  ASSERT_EQ(streamed.messages.size(), whole.messages.size());
  for (std::size_t i = 0; i < whole.messages.size(); ++i) {
    const OomMessage& a = whole.messages[i];
    const OomMessage& b = streamed.messages[i];
    EXPECT_EQ(a.offset, b.offset);
    EXPECT_EQ(a.line, b.line);
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_EQ(a.where, b.where);
    EXPECT_EQ(a.stage, Stage::kOptimizer);
    EXPECT_EQ(b.stage, Stage::kOptimizer);
    EXPECT_EQ(a.requested, b.requested);
    EXPECT_EQ(a.reserved_free, b.reserved_free);
    EXPECT_EQ(text.substr(b.offset, 18), "CUDA out of memory");
  }
}

TEST(LogReader, EveryPlaceOfAWindowsEnd) {
  const std::string crash = Crash(3);
  // The window is 4 MiB, of which the last 128 KiB are looked at in the next one.
  constexpr std::size_t kEnd = (std::size_t{4} << 20) - (std::size_t{128} << 10);
  for (std::size_t shift = 0; shift <= crash.size(); shift += 37) {
    std::string text = Steps(0, 80'000).substr(0, kEnd - shift);
    text.back() = '\n';
    text += crash + Steps(0, 20'000);
    const Recording recording = LogFile(text).Read();
    ASSERT_EQ(recording.messages.size(), 1u) << shift;
    EXPECT_EQ(recording.messages[0].where, "train.py:13 in main") << shift;
    EXPECT_EQ(recording.messages[0].reserved_free, GiB(1.2)) << shift;
  }
}

TEST(LogReader, EveryPlaceOfAPiecesEnd) {
  const std::string crash = "CUDA out of memory. Tried to allocate 2.50 GiB.";
  // Pieces are of half a mebibyte, and of lines where these end.
  constexpr std::size_t kEnd = std::size_t{512} << 10;
  std::string line = Steps(0, 20'000);
  std::ranges::replace(line, '\n', ' ');
  for (std::size_t shift = 0; shift <= crash.size(); shift += 3) {
    const std::string text = line.substr(0, kEnd - shift) + crash + line.substr(0, 2 * kEnd);
    const Recording recording = ReadText(text);
    ASSERT_EQ(recording.messages.size(), 1u) << shift;
    EXPECT_EQ(recording.messages[0].offset, kEnd - shift);
    EXPECT_EQ(recording.messages[0].requested, GiB(2.5)) << shift;
  }
}

TEST(LogReader, Utf16InAStream) {
  std::string wide = "\xff\xfe";
  for (char c : Steps(0, 50'000) + Crash(2)) wide += std::string{c, '\0'};
  const Recording recording = LogFile(wide).Read();
  ASSERT_EQ(recording.messages.size(), 1u);
  EXPECT_EQ(recording.messages[0].rank, 2);
  EXPECT_EQ(recording.messages[0].line, 50'004u);
}

/// Seconds of the processor that a log of so many ranks takes.
double SecondsFor(int ranks) {
  std::string text;
  for (int i = 0; i < ranks; ++i) {
    text += "[rank" + std::to_string(i) + "]: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
  }
  const std::clock_t begin = std::clock();
  const Recording recording = ReadText(text);
  const std::clock_t end = std::clock();
  EXPECT_EQ(recording.messages.size(), static_cast<std::size_t>(ranks));
  return double(end - begin) / CLOCKS_PER_SEC;
}

TEST(LogReader, ManyRanksTakeTimeInProportion) {
  SecondsFor(1000);  // the tables are made
  const double few = SecondsFor(4000);
  const double many = SecondsFor(16'000);
  EXPECT_LT(many, 10 * few + 0.05);
}

TEST(LogReader, NulsAreLeftOut) {
  const std::string line =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.78 GiB of "
      "which 1.19 GiB is free.\n";
  std::string inside = line;
  inside.insert(20, 3, '\0');
  for (const std::string& text :
       {std::string(1, '\0') + line, std::string(3 << 20, '\0') + line, inside}) {
    const Recording recording = LogFile(text).Read();
    ASSERT_EQ(recording.messages.size(), 1u);
    EXPECT_EQ(recording.messages[0].requested, 2 * kGiB);
    EXPECT_TRUE(RecogniseErrorText(text));
  }
}

TEST(LogReader, ErrorsOfNcclBesideADeathAreCounted) {
  const Recording recording =
      LogFile(
          "[rank1]: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
          "[rank0]: torch.distributed.DistBackendError: NCCL error, ncclRemoteError: A call "
          "failed\n")
          .Read();
  EXPECT_EQ(recording.skipped.count("errors of NCCL, which follow when another rank has died"), 1u);
}

}  // namespace
}  // namespace plimsoll::log_reader_test
