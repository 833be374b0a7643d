// The runtime: the device, cudaMalloc, streams and events. And what the load may ask of the device.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fake_device.h"

// Never destroyed: the allocator may call us while the program ends.
Device& TheDevice() {
  static auto* device = new Device;
  return *device;
}

static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

extern "C" {

void fake_cuda_configure(std::uint64_t total, std::uint64_t capacity, std::uint64_t scatter) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  device.total = total;
  device.capacity = capacity;
  if (scatter != 0) device.space.Scatter(scatter);
}

void fake_cuda_tick() {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  ++device.now;
}

void fake_cuda_busy(void* stream, std::uint64_t ticks) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  std::uint64_t& until = device.busy_until[static_cast<cudaStream_t>(stream)];
  until = std::max(until, device.now) + ticks;
}

void fake_cuda_capture(void* stream, int capturing) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  if (capturing != 0) {
    device.capturing.insert(static_cast<cudaStream_t>(stream));
  } else {
    device.capturing.erase(static_cast<cudaStream_t>(stream));
  }
}

FakeCudaCounts fake_cuda_counts() {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  return device.counts;
}

// ---- the device ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

// A macro gives this the name of the header's version (cudaGetDeviceProperties_v2 in CUDA 12).
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "fake H200");
  properties->totalGlobalMem = TheDevice().total;
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  for (const auto& [stream, until] : device.busy_until) device.now = std::max(device.now, until);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the fake device";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

// ---- memory ----

cudaError_t cudaMalloc(void** pointer, size_t size) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  if (device.used + size > device.capacity) {
    ++device.counts.failed_mallocs;
    return cudaErrorMemoryAllocation;
  }
  ++device.counts.mallocs;
  device.used += size;
  *pointer = reinterpret_cast<void*>(device.space.Take(size));
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  if (pointer == nullptr) return cudaSuccess;
  const Size size = device.space.Give(reinterpret_cast<Address>(pointer));
  if (size == 0) return cudaErrorInvalidValue;
  ++device.counts.frees;
  device.used -= size;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  *free = device.capacity - device.used;
  *total = device.total;
  return cudaSuccess;
}

// ---- streams and events ----

// 32 streams are made at once for each pool of c10; as on a real machine their handles are in no
// order.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  const std::uint64_t number = device.streams++;
  *stream = reinterpret_cast<cudaStream_t>(0x32000000 + number * 37 % 257 * 0x5e0);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  device.now = std::max(device.now, device.busy_until[stream]);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  return device.now >= device.busy_until[stream] ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  std::uint64_t& until = device.busy_until[stream];
  until = std::max(until, device.done_at[event]);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  *status = device.capturing.count(stream) != 0 ? cudaStreamCaptureStatusActive
                                                : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

static cudaError_t CaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                               unsigned long long* id, cudaGraph_t* graph,
                               const cudaGraphNode_t** dependencies, size_t* count) {
  if (id != nullptr) *id = 1;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}

#if CUDART_VERSION < 13000
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** dependencies, size_t* count) {
  return CaptureInfo(stream, status, id, graph, dependencies, count);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return CaptureInfo(stream, status, id, graph, dependencies, count);
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  *event = reinterpret_cast<cudaEvent_t>(0x1000 + ++device.last_event);
  device.done_at[*event] = 0;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  device.done_at.erase(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  device.done_at[event] = device.busy_until[stream];
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  return device.now >= device.done_at[event] ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  ++device.counts.waits;
  device.now = std::max(device.now, device.done_at[event]);
  return cudaSuccess;
}
}
