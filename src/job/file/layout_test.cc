#include "job/file/layout.h"

#include <gtest/gtest.h>

namespace plimsoll::layout_test {
namespace {

TEST(Layout, DtypesAreKnownByTheirNames) {
  EXPECT_EQ(ParseDType("bfloat16"), DType::kBFloat16);
  EXPECT_EQ(ParseDType("float8_e5m2"), DType::kFloat8);
  EXPECT_EQ(ParseDType("torch.float32"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
  EXPECT_EQ(ElementSize(DType::kComplex128), 16);
  EXPECT_EQ(ElementSize(DType::kBool), 1);
}

TEST(Layout, CountsElements) {
  const Layout scalar;
  EXPECT_EQ(scalar.Numel(), 1);
  const Layout images{.dtype = DType::kFloat16, .sizes = {8, 3, 4, 4}, .strides = {48, 16, 4, 1}};
  EXPECT_EQ(images.Numel(), 384);
  EXPECT_EQ(images.bytes(), 768);
  EXPECT_EQ((Layout{.sizes = {5, 0}, .strides = {1, 1}}).bytes(), 0);
}

TEST(Layout, AbsurdCountsEndSomewhere) {
  const std::int64_t many = std::int64_t{1} << 40;
  const Layout layout{
      .dtype = DType::kComplex128, .sizes = {many, many, many}, .strides = {1, 1, 1}};
  EXPECT_EQ(layout.Numel(), kMostElements);
  EXPECT_GT(layout.bytes(), 0);
}

TEST(Layout, IsContiguousAsTorchSaysIt) {
  const auto contiguous = [](std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
    return Layout{.sizes = std::move(sizes), .strides = std::move(strides)}.IsContiguous();
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({2, 3}, {3, 1}));
  EXPECT_FALSE(contiguous({3, 2}, {1, 3})) << "transposed";
  EXPECT_FALSE(contiguous({2, 3}, {0, 1})) << "expanded";
  EXPECT_TRUE(contiguous({1, 3}, {77, 1})) << "the stride of a dimension of 1 does not count";
}

TEST(Layout, ChannelsLast) {
  const Layout nhwc{.sizes = {2, 3, 4, 5}, .strides = {60, 1, 15, 3}};
  EXPECT_TRUE(nhwc.IsChannelsLast());
  const Layout nchw{.sizes = {2, 3, 4, 5}, .strides = {60, 20, 5, 1}};
  EXPECT_FALSE(nchw.IsChannelsLast());
  const Layout both{.sizes = {2, 3, 1, 1}, .strides = {3, 1, 1, 1}};
  EXPECT_FALSE(both.IsChannelsLast()) << "contiguous as well";
  const Layout rows{.sizes = {2, 3}, .strides = {3, 1}};
  EXPECT_FALSE(rows.IsChannelsLast());
}

}  // namespace
}  // namespace plimsoll::layout_test
