#include "train/optimizers/memory_order.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace plimsoll::train::memory_order_test {
namespace {

TEST(MemoryOrder, CopiesOnlyWhatLiesInAnother) {
  const at::Tensor plain = torch::randn({2, 3, 4, 5});
  const at::Tensor last = plain.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_FALSE(SameOrder(plain, last));
  EXPECT_TRUE(InOrderOf(plain, plain).is_same(plain));
  const at::Tensor copy = InOrderOf(plain, last);
  EXPECT_TRUE(SameOrder(copy, last));
  EXPECT_TRUE(torch::equal(copy, plain));
  EXPECT_TRUE(torch::equal(Flat(copy), Flat(last)));
  EXPECT_EQ(InOrderOf(plain, last.to(at::kHalf)).scalar_type(), at::kHalf);
}

TEST(MemoryOrder, IgnoresStridesOfSingleElements) {
  const at::Tensor plain = torch::randn({3, 1, 4});
  const at::Tensor same = plain.as_strided({3, 1, 4}, {4, 77, 1});
  EXPECT_TRUE(SameOrder(plain, same));
}

TEST(MemoryOrder, FlatIsTheSameMemory) {
  at::Tensor tensor = torch::zeros({2, 3}).t().requires_grad_();
  const auto version = tensor._version();
  Flat(tensor).fill_(2);
  EXPECT_EQ(tensor.sum().item<float>(), 12);
  // Autograd sees that the tensor was written to.
  EXPECT_GT(tensor._version(), version);
}

TEST(MemoryOrder, RefusesGaps) {
  EXPECT_THROW(Flat(torch::zeros({4, 4}).slice(1, 0, 2)), c10::Error);
  EXPECT_THROW(Flat(torch::zeros({4, 1}).expand({4, 4})), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::memory_order_test
