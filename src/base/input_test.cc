#include "base/input.h"

#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>

#include "base/unpack.h"

namespace plimsoll {
namespace {

std::string Gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 1024, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string Xz(const std::string& text) {
  std::string out(text.size() + 1024, '\0');
  std::size_t used = 0;
  lzma_easy_buffer_encode(6, LZMA_CHECK_CRC32, nullptr,
                          reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
                          reinterpret_cast<std::uint8_t*>(out.data()), &used, out.size());
  out.resize(used);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

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
}  // namespace plimsoll
