#include "train/budget/budget.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/budget/cpu_allocator.h"

namespace plimsoll::train::budget_test {
namespace {

at::Tensor Floats(Bytes bytes) { return torch::empty({bytes / 4}); }

TEST(Budget, CountsAndKeepsToItsLimit) {
  Budget budget(c10::kCPU, std::nullopt);
  const Bytes before = budget.figures().allocated;
  at::Tensor a = Floats(kMiB);
  EXPECT_EQ(budget.figures().allocated, before + kMiB);
  a = at::Tensor();
  EXPECT_EQ(budget.figures().allocated, before);
  EXPECT_EQ(budget.figures().peak_reserved, before + kMiB);
  {
    Budget small(c10::kCPU, before + 2 * kMiB);
    a = Floats(kMiB);
    EXPECT_THROW(Floats(2 * kMiB), c10::OutOfMemoryError);
    EXPECT_EQ(small.figures().allocated, before + kMiB);
    const at::Tensor b = Floats(kMiB);
    EXPECT_LE(small.figures().peak_allocated, *small.limit());
  }
  // Lifted.
  Floats(8 * kMiB);
}

TEST(Budget, PeakScopesNest) {
  Budget budget(c10::kCPU, std::nullopt);
  const Bytes before = budget.figures().allocated;
  Floats(4 * kMiB);
  PeakScope outer(budget);
  Floats(2 * kMiB);
  {
    const PeakScope inner(budget);
    Floats(kMiB);
    EXPECT_EQ(inner.figures().peak_allocated, before + kMiB);
  }
  EXPECT_EQ(outer.figures().peak_allocated, before + 2 * kMiB);
  {
    const PeakScope inner(budget);
    Floats(3 * kMiB);
  }
  EXPECT_EQ(outer.figures().peak_allocated, before + 3 * kMiB);
  EXPECT_EQ(budget.figures().peak_allocated, before + 4 * kMiB);
}

TEST(CpuAllocator, CountsOnlyFromThenOn) {
  CpuAllocator& allocator = CpuAllocator::Installed();
  const Bytes before = allocator.allocated();
  std::optional<CpuAllocator::Uncounted> uncounted(std::in_place);
  at::Tensor tensor = Floats(kMiB);
  uncounted.reset();
  EXPECT_EQ(allocator.allocated(), before);
  const at::Tensor rows = tensor.slice(0, 0, 10);
  for (int i = 0; i < 2; ++i) {
    allocator.CountFromNowOn(rows);
    EXPECT_EQ(allocator.allocated(), before + kMiB) << "the whole piece, once";
  }
  float foreign = 0;
  allocator.CountFromNowOn(torch::from_blob(&foreign, {1}));
  EXPECT_EQ(allocator.allocated(), before + kMiB);
}

TEST(CpuAllocator, FailsOnceOnPurpose) {
  CpuAllocator& allocator = CpuAllocator::Installed();
  allocator.FailAt(allocator.requests() + 1);
  Floats(64);
  EXPECT_THROW(Floats(64), c10::OutOfMemoryError);
  Floats(64);
}

}  // namespace
}  // namespace plimsoll::train::budget_test
