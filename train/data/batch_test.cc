#include "train/data/batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace plimsoll::train::batch_test {
namespace {

TEST(Batch, MovesWhatLiesWhollyElsewhere) {
  const at::Tensor here = torch::ones({2, 3});
  const at::Tensor there = torch::ones({2, 3}, at::kMeta);
  const auto devices = [](const Batch& batch) {
    std::vector<c10::DeviceType> types;
    for (const at::Tensor& tensor : batch.tensors) types.push_back(tensor.device().type());
    return types;
  };
  using Types = std::vector<c10::DeviceType>;
  EXPECT_EQ(devices(Batch{{here, here}}.On(c10::kMeta)), (Types{at::kMeta, at::kMeta}));
  // Lengths, say, that some operators want on the host.
  EXPECT_EQ(devices(Batch{{there, here}}.On(c10::kMeta)), (Types{at::kMeta, at::kCPU}));
  EXPECT_TRUE(Batch{{here}}.On(c10::kCPU).tensors[0].is_same(here)) << "without a copy";
}

}  // namespace
}  // namespace plimsoll::train::batch_test
