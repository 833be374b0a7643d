#include "job/parallel/cut.h"

#include <gtest/gtest.h>

namespace plimsoll::cut_test {
namespace {

LayoutRecord Layout(std::initializer_list<std::int64_t> sizes,
                    std::initializer_list<std::int64_t> strides) {
  LayoutRecord layout;
  for (const std::int64_t size : sizes) layout.sizes.push_back(Number::Always(size));
  for (const std::int64_t stride : strides) layout.strides.push_back(Number::Always(stride));
  return layout;
}

/// The sizes of the part, and its strides.
std::string Part(const LayoutRecord& layout, const Cut& cut, std::int64_t parts) {
  const auto at = DividedDimension(layout, cut, parts);
  if (!at) return "whole";
  const LayoutRecord part = PartOf(layout, *at, parts);
  std::string text;
  for (std::size_t d = 0; d < part.sizes.size(); ++d) {
    text +=
        std::to_string(part.sizes[d].least()) + "/" + std::to_string(part.strides[d].least()) + " ";
  }
  return text;
}

TEST(Cut, IsTheSameInEveryView) {
  // 1,024 tokens of 512 features, by features: as a matrix, by heads, transposed, half of a head.
  const LayoutRecord matrix = Layout({1024, 512}, {512, 1});
  const Cut cut = CutOf(matrix, 1);
  EXPECT_EQ(Part(matrix, cut, 4), "1024/128 128/1 ");
  EXPECT_EQ(Part(Layout({2, 512, 16, 32}, {262144, 512, 32, 1}), cut, 4),
            "2/65536 512/128 4/32 32/1 ");
  EXPECT_EQ(Part(Layout({2, 16, 512, 32}, {262144, 32, 512, 1}), cut, 4),
            "2/65536 4/32 512/128 32/1 ");
  EXPECT_EQ(Part(Layout({2, 512, 16, 16}, {262144, 512, 32, 1}), cut, 4),
            "2/65536 512/128 4/32 16/1 ");
}

TEST(Cut, GoesByRowsOrByColumns) {
  const LayoutRecord weight = Layout({1408, 512}, {512, 1});
  EXPECT_EQ(Part(weight, CutOf(weight, 0), 8), "176/512 512/1 ");
  EXPECT_EQ(Part(weight, CutOf(weight, 1), 8), "1408/64 64/1 ");
  // As a product gets it.
  const LayoutRecord transposed = Layout({512, 1408}, {1, 512});
  EXPECT_EQ(Part(transposed, CutOf(weight, 0), 8), "512/1 176/512 ");
}

TEST(Cut, DividesQueryKeyAndValueEach) {
  const LayoutRecord joint = Layout({1024, 1536}, {1536, 1});
  EXPECT_EQ(Part(Layout({1024, 3, 16, 32}, {1536, 512, 32, 1}), CutOf(joint, 1), 2),
            "1024/768 3/256 8/32 32/1 ");
}

TEST(Cut, GivesTheFirstRankTheLargerPart) {
  const LayoutRecord words = Layout({50257, 768}, {768, 1});
  EXPECT_EQ(Part(words, CutOf(words, 0), 2), "25129/768 768/1 ");
}

TEST(Cut, OfPositionsLeavesSamplesAlone) {
  const LayoutRecord stream = Layout({2, 512, 64}, {32768, 64, 1});
  const Cut cut = CutOf(stream, 1);
  EXPECT_EQ(Part(stream, cut, 8), "2/4096 64/64 64/1 ");
  EXPECT_EQ(Part(Layout({1024, 64}, {64, 1}), cut, 8), "128/64 64/1 ");
  EXPECT_EQ(Part(Layout({}, {}), cut, 8), "whole");
}

}  // namespace
}  // namespace plimsoll::cut_test
