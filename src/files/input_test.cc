#include "files/input.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "files/packed_for_tests.h"
#include "files/unpack.h"

namespace plimsoll::input_test {
namespace {

TEST(Input, UnpacksWhateverTheContentSays) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += static_cast<char>('a' + i % 17);
  for (const std::string& packed : {Gzip(text), Xz(text), Zstd(text), text}) {
    const Result<Input> input = Input::FromMemory("x", packed);
    ASSERT_TRUE(input.ok());
    EXPECT_EQ(input->bytes(), text);
  }
}

TEST(Input, SeveralGzipMembersAreOneText) {
  const Result<Input> input = Input::FromMemory("x", Gzip("first ") + Gzip("second"));
  ASSERT_TRUE(input.ok());
  EXPECT_EQ(input->bytes(), "first second");
}

TEST(Input, PackedDataCutAnywhereIsAnErrorWithItsOffset) {
  const std::string text(5000, 'x');
  for (const std::string& packed : {Gzip(text), Xz(text), Zstd(text)}) {
    for (std::size_t n = 6; n < packed.size(); ++n) {
      const Result<Input> input = Input::FromMemory("cut.bin", packed.substr(0, n));
      ASSERT_FALSE(input.ok()) << n;
      EXPECT_EQ(input.error().file, "cut.bin");
      EXPECT_TRUE(input.error().offset.has_value());
    }
  }
}

TEST(Input, WhatUnpacksToTooMuchIsRefused) {
  const std::string zeros(70 << 20, '\0');
  for (const std::string& packed : {Gzip(zeros), Xz(zeros), Zstd(zeros)}) {
    const Result<Input> input = Input::FromMemory("bomb", packed);
    ASSERT_FALSE(input.ok()) << packed.size();
    EXPECT_NE(input.error().message.find("unpack to more than"), std::string::npos);
  }
}

TEST(Input, HowMuchAFileMayUnpackTo) {
  EXPECT_EQ(MostUnpacked(100), std::size_t{64} << 20);
  EXPECT_LE(MostUnpacked(9'999'999), std::size_t{400} << 20);
  // A recorded trace of 25 MB packed becomes a gigabyte.
  EXPECT_GT(MostUnpacked(25'000'000), std::size_t{2'000'000'000});
}

TEST(Input, KnowsHowLargeTheFileItselfIs) {
  const std::string packed = Zstd(std::string(10'000, 'x'));
  const Result<Input> input = Input::FromMemory("x", packed);
  ASSERT_TRUE(input.ok());
  EXPECT_EQ(input->size().stored, packed.size());
  EXPECT_EQ(input->bytes().size(), 10'000u);
}

TEST(Input, MemoryThatXzAsksForIsNoDamage) {
  lzma_options_lzma options;
  lzma_lzma_preset(&options, 0);
  options.dict_size = 512u << 20;
  const lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  const std::string text(1000, 'x');
  std::string out(text.size() + 1024, '\0');
  std::size_t used = 0;
  // The encoder only writes the size into the header; small inputs need little memory.
  const lzma_ret made =
      lzma_stream_buffer_encode(const_cast<lzma_filter*>(filters), LZMA_CHECK_CRC32, nullptr,
                                reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
                                reinterpret_cast<std::uint8_t*>(out.data()), &used, out.size());
  if (made != LZMA_OK) GTEST_SKIP() << "the encoder itself has not enough memory";
  out.resize(used);
  const Result<Input> input = Input::FromMemory("large.xz", out);
  ASSERT_FALSE(input.ok());
  EXPECT_EQ(input.error().message.find("damaged"), std::string::npos) << input.error().ToLine();
  EXPECT_NE(input.error().message.find("takes more than"), std::string::npos);
}

TEST(Input, AFileThatIsCutShortMeanwhileStays) {
  const auto path = std::filesystem::temp_directory_path() / "plimsoll_input_cut";
  std::ofstream(path) << std::string(100'000, 'x');
  const Result<Input> input = Input::Open(path.string());
  ASSERT_TRUE(input.ok());
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(input->bytes(), std::string(100'000, 'x'));
  std::filesystem::remove(path);
}

TEST(Input, ReadsAFileAndNamesOneThatIsNotThere) {
  const auto path = std::filesystem::temp_directory_path() / "plimsoll_input_test";
  std::ofstream(path) << "content";
  EXPECT_EQ(Input::Open(path.string())->bytes(), "content");
  std::filesystem::remove(path);
  const Result<Input> missing = Input::Open(path.string());
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().ToLine().find("check the path"), std::string::npos);
  EXPECT_FALSE(Input::Open("/").ok());
}

}  // namespace
}  // namespace plimsoll::input_test
