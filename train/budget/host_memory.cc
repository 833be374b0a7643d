#include "train/budget/host_memory.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdlib>

namespace plimsoll::train {
namespace {

/// What vectorised kernels and torch's own CPU allocator align to.
constexpr std::size_t kAlignment = 64;

std::size_t RoundedUp(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
}

at::Tensor OfMalloc(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  void* data = std::aligned_alloc(kAlignment, RoundedUp(bytes));
  TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "the host has no ", bytes, " bytes left");
  return at::from_blob(
      data, sizes, [](void* blob) { std::free(blob); }, at::TensorOptions(dtype));
}

}  // namespace

at::Tensor HostTensor(at::IntArrayRef sizes, at::ScalarType dtype, bool pinned) {
  if (!pinned || !at::hasCUDA()) return OfMalloc(sizes, dtype);
  return at::empty(sizes, at::TensorOptions(dtype).pinned_memory(true));
}

}  // namespace plimsoll::train
