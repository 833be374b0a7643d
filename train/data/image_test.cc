#include "train/data/image.h"

#include <gtest/gtest.h>

#include "train/data/folder_for_tests.h"
#include "train/data/source.h"

namespace plimsoll::train::image_test {
namespace {

/// 2x2: red, green; blue, white.
constexpr unsigned char kPng[] = {
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44,
    0x52, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x02, 0x08, 0x02, 0x00, 0x00, 0x00, 0xfd,
    0xd4, 0x9a, 0x73, 0x00, 0x00, 0x00, 0x12, 0x49, 0x44, 0x41, 0x54, 0x78, 0xda, 0x63, 0xf8,
    0xcf, 0xc0, 0xc0, 0x00, 0xc2, 0x0c, 0xff, 0x81, 0x00, 0x00, 0x1f, 0xee, 0x05, 0xfb, 0xf1,
    0xab, 0xba, 0x77, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};

const std::vector<std::uint8_t> kColours = {255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255};

std::string Ppm() {
  return "P6 2 2 # two by two\n255\n" + std::string(kColours.begin(), kColours.end());
}

std::string Png() { return {std::begin(kPng), std::end(kPng)}; }

TEST(ReadImage, ReadsPortableOnes) {
  const FolderForTests folder;
  const Image colours = ReadImage(folder.Write("a.PPM", Ppm()), 3);
  EXPECT_EQ(colours.height, 2);
  EXPECT_EQ(colours.width, 2);
  EXPECT_EQ(colours.pixels, kColours);
  EXPECT_EQ(ReadImage(folder.path() / "a.PPM", 1).pixels,
            (std::vector<std::uint8_t>{76, 149, 28, 255}));
  const auto grey = folder.Write("b.pgm", "P5\n#by hand\n1 2\n255\n\x07\x09");
  EXPECT_EQ(ReadImage(grey, 1).pixels, (std::vector<std::uint8_t>{7, 9}));
  EXPECT_EQ(ReadImage(grey, 3).pixels, (std::vector<std::uint8_t>{7, 7, 7, 9, 9, 9}));
}

TEST(ReadImage, ReadsPackedOnesWhereItCan) {
  const FolderForTests folder;
  const auto file = folder.Write("a.png", Png());
  if (ReadsPackedImages()) {
    EXPECT_EQ(ReadImage(file, 3).pixels, kColours);
  } else {
    EXPECT_NE(ErrorOf<DataError>([&] { ReadImage(file, 3); }).find("a.png: only .ppm"),
              std::string::npos);
  }
}

TEST(ReadImage, NamesTheFileThatIsBad) {
  const FolderForTests folder;
  const std::vector<std::string> bad = {
      "",        "P6",   "P3 1 1 255 1 1 1",       "P6 2 2 255\nabc",      "P6 2 -2 255\n",
      "P6 2",    "P6 #", "P6 99999 99999 255\nab", "P6 1 1 65535\nabcdef", "P5 999999999999 1 255 ",
      "P6 2 2 ", "GIF"};
  for (const std::string& bytes : bad) {
    const auto file = folder.Write("bad.ppm", bytes);
    const std::string error = ErrorOf<DataError>([&] { ReadImage(file, 3); });
    EXPECT_TRUE(error.starts_with(file.string() + ": ")) << bytes << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  for (std::size_t length = 0; length < sizeof kPng - 30; ++length) {
    const auto file = folder.Write("bad.png", Png().substr(0, length));
    const std::string error = ErrorOf<DataError>([&] { ReadImage(file, 3); });
    EXPECT_TRUE(error.starts_with(file.string() + ": ")) << length << ": " << error;
  }
  const std::string missing = ErrorOf<DataError>([&] { ReadImage(folder.path() / "no.ppm", 3); });
  EXPECT_NE(missing.find("no.ppm"), std::string::npos);
}

TEST(WriteScaled, KeepsAnImageOfTheSize) {
  const Image image = {
      .height = 1, .width = 2, .channels = 3, .pixels = {0, 51, 102, 153, 204, 255}};
  std::vector<float> out(6);
  WriteScaled(image, 1, 2, out.data());
  const std::vector<float> expected = {-1, 0.2F, -0.6F, 0.6F, -0.2F, 1};
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-6);
}

TEST(WriteScaled, GoesFromPixelToPixel) {
  const Image image = {.height = 1, .width = 2, .channels = 1, .pixels = {0, 255}};
  std::vector<float> out(8);
  WriteScaled(image, 2, 4, out.data());
  const std::vector<float> expected = {-1, -0.5F, 0.5F, 1};
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i % 4], 1e-6);
}

TEST(WriteNearest, MixesNothing) {
  const Image image = {.height = 2, .width = 2, .channels = 1, .pixels = {1, 2, 3, 4}};
  std::vector<std::int64_t> out(12);
  WriteNearest(image, 3, 4, out.data());
  EXPECT_EQ(out, (std::vector<std::int64_t>{1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4}));
}

}  // namespace
}  // namespace plimsoll::train::image_test
