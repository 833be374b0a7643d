// What the load program may ask of the GPU that is not there, besides CUDA's own interface.
#ifndef PLIMSOLL_TOOLS_REAL_ALLOCATOR_FAKE_CUDA_H_
#define PLIMSOLL_TOOLS_REAL_ALLOCATOR_FAKE_CUDA_H_

#include <cstdint>

extern "C" {

// To be called before the first CUDA call. `capacity` is what cudaMalloc and cuMemCreate can hand
// out together; `total` is what the device claims to have. With `scatter` not 0 new segments get
// addresses in a random order (the seed is `scatter`) instead of an H200's.
void fake_cuda_configure(std::uint64_t total, std::uint64_t capacity, std::uint64_t scatter);

// Time is counted, not measured: one tick for each call of this.
void fake_cuda_tick();

// The stream has work for so many more ticks; events recorded on it after this wait for that work.
void fake_cuda_busy(void* stream, std::uint64_t ticks);

// The stream is (1) or is not (0) being captured into a graph.
void fake_cuda_capture(void* stream, int capturing);

// How often a call of each kind was made: segments and physical pages created and given back, and
// waits for an event.
struct FakeCudaCounts {
  std::uint64_t mallocs, failed_mallocs, frees, creates, failed_creates, releases, reserves, waits;
};
FakeCudaCounts fake_cuda_counts();
}

#endif  // PLIMSOLL_TOOLS_REAL_ALLOCATOR_FAKE_CUDA_H_
