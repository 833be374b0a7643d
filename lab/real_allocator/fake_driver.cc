// The driver, which gives expandable segments their memory, and NVML.
#include <dlfcn.h>
#include <unistd.h>

#include "fake_device.h"

namespace {

void DropUse(Device& device, CUmemGenericAllocationHandle page) {
  if (--device.uses[page] > 0) return;
  device.used -= device.pages[page];
  device.pages.erase(page);
  device.uses.erase(page);
}

// nvmlProcessInfo_v1_t
struct FakeProcess {
  unsigned pid;
  unsigned long long used_bytes;
};

}  // namespace

extern "C" {

// ---- the driver: virtual memory for expandable segments ----

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t size, size_t, CUdeviceptr,
                             unsigned long long) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  ++device.counts.reserves;
  *pointer = device.next_reservation;
  device.next_reservation = RoundUp(device.next_reservation + size, kRegion);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*,
                     unsigned long long) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  if (device.used + size > device.capacity) {
    ++device.counts.failed_creates;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++device.counts.creates;
  device.used += size;
  *handle = ++device.last_page;
  device.pages[*handle] = size;
  device.uses[*handle] = 1;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  if (device.pages.count(handle) == 0) return CUDA_ERROR_INVALID_VALUE;
  ++device.counts.releases;
  DropUse(device, handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  if (device.pages.count(handle) == 0 || device.mapped.count(pointer) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  device.mapped[pointer] = {size, handle};
  ++device.uses[handle];
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  auto page = device.mapped.lower_bound(pointer);
  if (page == device.mapped.end() || page->first != pointer) return CUDA_ERROR_INVALID_VALUE;
  while (page != device.mapped.end() && page->first < pointer + size) {
    DropUse(device, page->second.second);
    page = device.mapped.erase(page);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granularity = Size{2} << 20;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error of the fake driver";
  return CUDA_SUCCESS;
}

// ---- how newer releases find the driver's functions; older ones use dlsym ----

static CUresult NotImitated() { return CUDA_ERROR_NOT_SUPPORTED; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (*function == nullptr) *function = reinterpret_cast<void*>(&NotImitated);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, result);
}
#endif

// ---- NVML: asked whether memory can be shared over a fabric, and who else uses the device ----

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = nullptr;
  return 0;
}

// The caller's structure says "not supported" as long as nobody writes to it.
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }

// We alone; what the device has and cannot hand out is our context. 7: the caller's list is too
// short.
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, FakeProcess* processes) {
  Device& device = TheDevice();
  const Lock lock(device.mutex);
  const bool room = *count > 0;
  *count = 1;
  if (!room) return 7;
  processes[0] = {static_cast<unsigned>(getpid()), device.used + device.total - device.capacity};
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDART_VERSION;
  return 0;
}

// 3: not supported.
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, unsigned*) { return 3; }

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
}
