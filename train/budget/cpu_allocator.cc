#include "train/budget/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>

namespace plimsoll::train {
namespace {

/// In front of every piece: its size. As large as torch wants its data aligned. The pointer that
/// torch gets must be the context of its DataPtr too (oneDNN asks for raw pointers and asserts it),
/// so that the size has no other place.
constexpr std::size_t kHeader = 64;

/// Before main, so that no model is made before its memory is counted.
[[maybe_unused]] const CpuAllocator& kInstalled = CpuAllocator::Installed();

}  // namespace

CpuAllocator& CpuAllocator::Installed() {
  // Never destroyed: tensors in static storage are freed after main.
  static CpuAllocator* const allocator = [] {
    auto* made = new CpuAllocator;
    constexpr std::uint8_t kPriority = 10;
    c10::SetCPUAllocator(made, kPriority);
    return made;
  }();
  return *allocator;
}

std::optional<Bytes> CpuAllocator::limit() const {
  const Bytes limit = limit_;
  return limit == kNoLimit ? std::nullopt : std::optional(limit);
}

void CpuAllocator::Count(Bytes bytes) {
  const Bytes before = allocated_.fetch_add(bytes);
  const Bytes limit = limit_;
  if (before + bytes > limit) {
    allocated_ -= bytes;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "CPU out of memory under plimsoll's limit: tried to allocate ",
        FormatBytes(bytes), ", ", FormatBytes(before), " of ", FormatBytes(limit), " are in use");
  }
  Bytes peak = peak_;
  while (peak < before + bytes && !peak_.compare_exchange_weak(peak, before + bytes)) {
  }
}

void* CpuAllocator::Take(std::size_t bytes) {
  const std::int64_t request = requests_++;
  if (std::int64_t failing = request; fail_at_.compare_exchange_strong(failing, -1)) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory, on purpose, at request ",
                     request);
  }
  Count(static_cast<Bytes>(bytes));
  made_ += static_cast<Bytes>(bytes);
  void* piece = nullptr;
  if (posix_memalign(&piece, kHeader, bytes + kHeader) != 0) {
    allocated_ -= static_cast<Bytes>(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory: the system has no ", bytes,
                     " bytes");
  }
  std::memcpy(piece, &bytes, sizeof bytes);
  return static_cast<char*>(piece) + kHeader;
}

void CpuAllocator::Free(void* data) {
  if (data == nullptr) return;
  void* const piece = static_cast<char*>(data) - kHeader;
  std::size_t bytes = 0;
  std::memcpy(&bytes, piece, sizeof bytes);
  Installed().allocated_ -= static_cast<Bytes>(bytes);
  std::free(piece);
}

c10::DataPtr CpuAllocator::allocate(std::size_t bytes) {
  void* const data = bytes == 0 ? nullptr : Take(bytes);
  return {data, data, &Free, c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr CpuAllocator::raw_deleter() const { return &Free; }

void CpuAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(to, from, bytes);
}

}  // namespace plimsoll::train
