#include "train/budget/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace plimsoll::train {
namespace {

/// In front of every piece. The pointer that torch gets must be the context of its DataPtr too
/// (oneDNN asks for raw pointers and asserts it), so that there is no other place for it. As large
/// as torch wants its data aligned.
struct alignas(64) PieceHeader {
  Bytes bytes = 0;
  bool counted = true;
};
PieceHeader& PieceHeaderOf(void* data) { return *(static_cast<PieceHeader*>(data) - 1); }

/// Before main, so that no model is made before its memory is counted.
[[maybe_unused]] const CpuAllocator& kInstalled = CpuAllocator::Installed();

}  // namespace

thread_local int CpuAllocator::uncounted_ = 0;

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

void CpuAllocator::CountRequest(Bytes bytes) {
  const std::int64_t request = requests_++;
  if (std::int64_t failing = request; fail_at_.compare_exchange_strong(failing, -1)) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory, on purpose, at request ",
                     request);
  }
  Count(bytes);
  made_ += bytes;
}

void* CpuAllocator::Take(std::size_t bytes) {
  const PieceHeader header{.bytes = static_cast<Bytes>(bytes), .counted = uncounted_ == 0};
  if (header.counted) CountRequest(header.bytes);
  void* piece = nullptr;
  if (posix_memalign(&piece, alignof(PieceHeader), bytes + sizeof(PieceHeader)) != 0) {
    if (header.counted) allocated_ -= header.bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory: the system has no ", bytes,
                     " bytes");
  }
  return new (piece) PieceHeader(header) + 1;
}

void CpuAllocator::Free(void* data) {
  if (data == nullptr) return;
  PieceHeader& header = PieceHeaderOf(data);
  if (header.counted) Installed().allocated_ -= header.bytes;
  std::free(&header);
}

void CpuAllocator::CountFromNowOn(const at::TensorBase& tensor) {
  const c10::DataPtr& piece = tensor.storage().data_ptr();
  // Not of one that was made of memory from elsewhere.
  if (piece.get_deleter() != &Free || piece.get() == nullptr) return;
  PieceHeader& header = PieceHeaderOf(piece.get());
  if (header.counted) return;
  CountRequest(header.bytes);
  header.counted = true;
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
