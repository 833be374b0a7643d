// A CUDA runtime and driver without a GPU: as much of them as libc10_cuda.so calls.
//
// Built as libcudart.so.12 or .13 (see build.sh), it hands out virtual addresses that nobody will
// ever dereference. It imitates an H200 as far as the caching allocator can tell:
// - cudaMalloc: a fresh segment begins at a multiple of 32 MiB, each below the one before;
//   segments smaller than that share such a region and fill it upward; freed ranges are used again.
// - cuMemAddressReserve: 0x302000000 first, each next at the end of the last, rounded up to 32 MiB.
// - Both kinds of memory fail together once the capacity is reached.
// - A stream is a clock: work on it ends at a tick, an event is done when that tick has passed.
#ifndef PLIMSOLL_TOOLS_REAL_ALLOCATOR_FAKE_DEVICE_H_
#define PLIMSOLL_TOOLS_REAL_ALLOCATOR_FAKE_DEVICE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "address_space.h"
#include "fake_cuda.h"

struct Device {
  std::recursive_mutex mutex;
  Size total = 150109880320;
  Size capacity = 149557477376;
  Size used = 0;
  AddressSpace space;

  std::map<CUmemGenericAllocationHandle, Size> pages;
  std::map<CUmemGenericAllocationHandle, int> uses;  // a page lives until released and unmapped
  std::map<Address, std::pair<Size, CUmemGenericAllocationHandle>> mapped;
  CUmemGenericAllocationHandle last_page = 0;
  Address next_reservation = 0x302000000;

  std::uint64_t now = 0;
  std::map<cudaStream_t, std::uint64_t> busy_until;
  std::set<cudaStream_t> capturing;
  std::uint64_t last_event = 0;
  std::map<cudaEvent_t, std::uint64_t> done_at;
  std::uint64_t streams = 0;
  FakeCudaCounts counts{};
};

Device& TheDevice();

using Lock = std::lock_guard<std::recursive_mutex>;

#endif  // PLIMSOLL_TOOLS_REAL_ALLOCATOR_FAKE_DEVICE_H_
