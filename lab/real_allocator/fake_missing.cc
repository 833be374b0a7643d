// The functions that libc10_cuda.so links or looks up by name, and that our load never calls. They
// are here without CUDA's headers, so that their true types do not matter.
#include <cstdio>
#include <cstdlib>

#define NOT_IMITATED(name)                                                          \
  extern "C" [[noreturn]] void name() {                                             \
    std::fputs("fake_cuda: " #name " was called, which is not imitated\n", stderr); \
    std::abort();                                                                   \
  }

NOT_IMITATED(cuMemExportToShareableHandle)
NOT_IMITATED(cuMemImportFromShareableHandle)
NOT_IMITATED(cuMemsetD32Async)
NOT_IMITATED(cuMulticastAddDevice)
NOT_IMITATED(cuMulticastBindMem)
NOT_IMITATED(cuMulticastCreate)
NOT_IMITATED(cuStreamWriteValue32)
NOT_IMITATED(cudaDeviceGetDefaultMemPool)
NOT_IMITATED(cudaDeviceGetGraphMemAttribute)
NOT_IMITATED(cudaDeviceSetGraphMemAttribute)
NOT_IMITATED(cudaEventElapsedTime)
NOT_IMITATED(cudaFreeAsync)
NOT_IMITATED(cudaGraphAddEmptyNode)
NOT_IMITATED(cudaGraphNodeGetDependencies)
NOT_IMITATED(cudaGraphNodeGetType)
NOT_IMITATED(cudaIpcCloseMemHandle)
NOT_IMITATED(cudaIpcGetMemHandle)
NOT_IMITATED(cudaIpcOpenMemHandle)
NOT_IMITATED(cudaMallocAsync)
NOT_IMITATED(cudaMemPoolGetAttribute)
NOT_IMITATED(cudaMemPoolSetAccess)
NOT_IMITATED(cudaMemPoolSetAttribute)
NOT_IMITATED(cudaMemPoolTrimTo)
NOT_IMITATED(cudaMemcpy)
NOT_IMITATED(cudaMemcpyAsync)
NOT_IMITATED(cudaMemcpyPeerAsync)
NOT_IMITATED(cudaStreamUpdateCaptureDependencies)
