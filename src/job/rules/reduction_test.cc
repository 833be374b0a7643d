#include "job/rules/reduction.h"

#include <gtest/gtest.h>

#include "job/rules/testing.h"

namespace plimsoll::reduction_test {
namespace {

Gpu H200() { return *FindGpu("H200"); }

Layout Dense(DType dtype, std::vector<std::int64_t> sizes, std::vector<std::size_t> order = {}) {
  std::vector<std::int64_t> strides = StridesInOrder(sizes, std::move(order));
  return {.dtype = dtype, .sizes = std::move(sizes), .strides = std::move(strides)};
}

struct Case {
  Layout input;
  std::vector<std::int64_t> dims;
  Accumulator accumulator;
  Bytes staging;
  Bytes semaphores;
};

// Each as an H200 was seen to take it.
TEST(ReductionTest, IsAsMeasured) {
  const std::vector<std::size_t> nhwc = {0, 2, 3, 1};
  const std::vector<Case> cases = {
      // The gradient of a bias.
      {Dense(DType::kFloat32, {2048, 768}), {0}, {}, 12582912, 24},
      {Dense(DType::kFloat32, {2048, 3072}), {0}, {}, 50331648, 96},
      {Dense(DType::kFloat32, {3152, 1024}), {0}, {}, 26214400, 32},
      // Everything to one number, and its standard deviation.
      {Dense(DType::kFloat32, {4, 512, 768}), {}, {}, 768, 4},
      {Dense(DType::kFloat32, {4, 512, 768}), {}, {.bytes = 16, .vectorised = false}, 3072, 4},
      // A global average pool, channels last; channels first each block does its outputs alone.
      {Dense(DType::kFloat32, {8, 64, 112, 112}, nhwc), {2, 3}, {}, 51380224, 16},
      {Dense(DType::kFloat32, {8, 64, 112, 112}), {-1, -2}, {}, 0, 0},
      // The gradient of a convolution's bias, channels last.
      {Dense(DType::kFloat32, {8, 64, 112, 112}, nhwc), {0, 2, 3}, {}, 12845056, 4},
      // The last dimension.
      {Dense(DType::kFloat32, {4, 512, 768}), {-1}, {}, 0, 0},
  };
  for (const Case& c : cases) {
    const ReductionTemps temps = ReductionTemporaries(c.input, c.dims, c.accumulator, H200());
    EXPECT_EQ(temps.staging, c.staging) << c.input.sizes[0] << " " << c.dims.size();
    EXPECT_EQ(temps.semaphores, c.semaphores);
  }
}

TEST(ReductionTest, NothingForNothing) {
  EXPECT_EQ(ReductionTemporaries({}, {}, {}, H200()).staging, 0);
  EXPECT_EQ(ReductionTemporaries(Dense(DType::kFloat32, {0, 4}), {}, {}, H200()).staging, 0);
  const std::vector<std::int64_t> wrong = {7, -9};
  EXPECT_EQ(ReductionTemporaries(Dense(DType::kFloat32, {3, 4}), wrong, {}, H200()).staging, 0);
}

}  // namespace
}  // namespace plimsoll::reduction_test
