#include "train/budget/host_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/budget/cpu_allocator.h"

namespace plimsoll::train::host_memory_test {
namespace {

TEST(HostTensor, CountsInNoBudget) {
  CpuAllocator& memory = CpuAllocator::Installed();
  const Bytes before = memory.allocated();
  memory.ResetPeak();
  for (const bool pinned : {false, true}) {
    const at::Tensor tensor = HostTensor({100, 30}, at::kBFloat16, pinned);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({100, 30}));
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(tensor.device().is_cpu());
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0);
    EXPECT_EQ(memory.peak(), before);
  }
}

TEST(HostTensor, MayBeEmptyOrOneNumber) {
  EXPECT_EQ(HostTensor({0, 4}, at::kFloat, false).numel(), 0);
  EXPECT_EQ(HostTensor({}, at::kFloat, false).fill_(3).item<float>(), 3);
}

TEST(HostTensor, FailsAsADeviceWould) {
  EXPECT_THROW(HostTensor({std::int64_t{1} << 60}, at::kByte, false), c10::OutOfMemoryError);
}

}  // namespace
}  // namespace plimsoll::train::host_memory_test
