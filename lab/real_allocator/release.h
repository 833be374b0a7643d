// The differences between PyTorch's releases in what we call, so that the programs need not know.
// TORCH_MINOR is the release: 11 for 2.11 (set by build.sh).
#ifndef PLIMSOLL_TOOLS_REAL_ALLOCATOR_RELEASE_H_
#define PLIMSOLL_TOOLS_REAL_ALLOCATOR_RELEASE_H_

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#if TORCH_MINOR >= 11
#include <c10/cuda/PeerToPeerAccess.h>
#endif

#include <cstddef>
#include <string>

// Exported by libc10_cuda for libtorch_cuda, in no header: who says whether a device is in use.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*answer)(c10::DeviceIndex));
}

namespace release {

namespace native = c10::cuda::CUDACachingAllocator;
#if TORCH_MINOR >= 9
using PoolId = c10::MempoolId_t;
#else
using PoolId = c10::cuda::MempoolId_t;
#endif

// What libtorch_cuda does before the allocator can be used.
inline void Init() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if TORCH_MINOR >= 11
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  native::init(1);
}

inline void RecordHistory(native::CreateContextFn context, std::size_t entries) {
#if TORCH_MINOR >= 11
  native::recordHistory(true, context, entries, native::RecordContext::ALL, false, {});
#elif TORCH_MINOR >= 8
  native::recordHistory(true, context, entries, native::RecordContext::ALL, false);
#else
  native::recordHistory(true, context, entries, native::RecordContext::ALL);
#endif
}

inline void SetSettings(const std::string& settings) {
#if TORCH_MINOR >= 10
  c10::CachingAllocator::setAllocatorSettings(settings);
#else
  native::setAllocatorSettings(settings);
#endif
}

// What the constructor of torch.cuda.MemPool does to the allocator.
inline void CreatePool([[maybe_unused]] PoolId pool) {
#if TORCH_MINOR >= 8
  native::createOrIncrefPool(0, pool);
#elif TORCH_MINOR >= 6
  native::ensureExistsAndIncrefPool(0, pool);
#endif
}

inline void SetUseOnOom([[maybe_unused]] PoolId pool) {
#if TORCH_MINOR >= 11
  native::setUseOnOOM(0, pool, true);
#elif TORCH_MINOR >= 8
  native::setUseOnOOM(0, pool);
#endif
}

inline void SetNoSplit([[maybe_unused]] PoolId pool) {
#if TORCH_MINOR >= 10
  native::setNoSplit(0, pool);
#endif
}

inline void MarkCapture([[maybe_unused]] bool begins) {
#if TORCH_MINOR >= 13
  begins ? native::markCaptureBegin(0) : native::markCaptureEnd(0);
#endif
}

// Memory at that address, for a resize_ in place; throws a c10::Error if it is not free.
inline c10::DataPtr AllocateAt([[maybe_unused]] std::size_t size, [[maybe_unused]] void* address) {
#if TORCH_MINOR >= 13
  return native::get()->allocateWithAddress(size, address);
#else
  TORCH_CHECK(false, "releases before 2.13 cannot allocate at an address");
#endif
}

}  // namespace release

#endif  // PLIMSOLL_TOOLS_REAL_ALLOCATOR_RELEASE_H_
