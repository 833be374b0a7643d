#include "readers/error_text/wordings.h"

#include <array>

namespace plimsoll {
namespace {

using enum MessageSource;

bool ReadNothing(Scanner&, std::string_view, OomMessage&) { return true; }

// Blanks in the openings stand for any blanks, line ends and prefixes, or none; case does not
// matter. Where two openings end at the same place, the longer one counts.
constexpr std::array kWordings = std::to_array<Wording>({
    {"CUDA out of memory", kTorchCuda, ReadTorch},
    {"HIP out of memory", kTorchHip, ReadTorch},
    {"XPU out of memory", kTorchXpu, ReadTorch},
    {"NPU out of memory", kTorchNpu, ReadTorch},
    {"MUSA out of memory", kTorchOtherDevice, ReadTorch},
    {"MLU out of memory", kTorchOtherDevice, ReadTorch},
    {"GCU out of memory", kTorchOtherDevice, ReadTorch},
    {"Tried to allocate", kTorchCuda, ReadTorchHeadless},
    {"platform can NOT allocate memory block", kTorchXpu, ReadXpuBlock},
    {"MPS backend out of memory", kTorchMps, ReadTorchMps},
    {"Preemptively rejecting allocation:", kTorchRejected, ReadTorchRejectedWarning},
    {"Allocation on device", kTorchAsync, ReadTorchAsync},
    {"[ExpandableSegmentVA]", kVirtualAddress, ReadVirtualAddress},
    {"NVML_SUCCESS ==", kTorchNvml, ReadNvmlAssert},

    {"CUDA error: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"HIP error: out of memory", kHipRuntime, ReadCudaRuntime},
    {"CUDA driver error: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"CUDA runtime error: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"cuda runtime error (2) : out of memory", kCudaRuntime, ReadCudaRuntime},
    {"error=2 : out of memory", kCudaRuntime, ReadCudaRuntime},
    {"cudaMalloc failed: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"cudaErrorMemoryAllocation", kCudaRuntime, ReadCudaRuntime},
    {"hipErrorOutOfMemory", kHipRuntime, ReadCudaRuntime},
    {"CUDA_ERROR_OUT_OF_MEMORY", kCudaRuntime, ReadCudaRuntime},
    {"CUBLAS_STATUS_ALLOC_FAILED", kCublas, ReadCublas},
    {"cublas runtime error : resource allocation failed", kCublas, ReadOldCublas},
    {"CUDNN_STATUS_ALLOC_FAILED", kCudnn, ReadCudnn},
    {"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", kCudnn, ReadCudnn},
    {"Unable to find a valid cuDNN algorithm", kCudnn, ReadCudnnNoAlgorithm},
    {"unable to find an engine to execute this computation", kCudnn, ReadCudnnNoAlgorithm},
    {"Failed to CUDA calloc", kNccl, ReadNcclCalloc},
    {"Cuda failure 'out of memory'", kNccl, ReadNcclFailure},
    {"Cuda failure 2 'out of memory'", kNccl, ReadNcclFailure},
    {"MODULE:PT_DEVMEM", kHabana, ReadHabana},

    {"DefaultCPUAllocator:", kHostMemory, ReadCpuAllocator},
    {"Torch: not enough memory:", kHostMemory, ReadCpuAllocator},
    {"posix_memalign", kHostMemory, ReadPosixMemalign},
    {"Unable to allocate", kHostMemory, ReadNumpy},
    {"Cannot allocate memory", kHostMemory, ReadErrno},
    {"MemoryError", kHostMemory, ReadMemoryError},
    {"paging file is too small", kHostMemory, ReadPageFile},
    {"unable to allocate shared memory", kHostMemory, ReadSharedMemory},
    {"insufficient shared memory", kHostMemory, ReadSharedMemory},
    {"unable to mmap", kHostMemory, ReadSharedMap},
    {"unable to write to file", kHostMemory, ReadSharedFile},
    {"unable to open shared memory object", kHostMemory, ReadSharedFile},
    {"pinned host memory of size", kHostMemory, ReadPinnedHost},
    {"failed to alloc", kHostMemory, ReadAllocOnHost},
    {"requires more system memory", kHostMemory, ReadOllamaSystem},

    {"ut of memory: Kill", kHostMemory, ReadKernelKill},
    {"oom-kill:constraint=", kHostMemory, ReadKernelConstraint},
    {"oom_reaper:", kHostMemory, ReadReaper},
    {"invoked", kHostMemory, ReadInvoked},
    {"memory: usage", kHostMemory, ReadCgroupUsage},
    {"systemd-oomd", kHostMemory, ReadSystemd},
    {"Detected", kHostMemory, ReadSlurm},
    {"exceeded memory limit", kHostMemory, ReadSlurmLimit},
    {"Exceeded job memory limit", kHostMemory, ReadSlurmLimit},
    {"Exceeded step memory limit", kHostMemory, ReadSlurmLimit},
    {"OUT_OF_MEMORY", kHostMemory, ReadSlurmState},
    {"exceeded limit", kHostMemory, ReadBatchLimit},
    {"TERM_MEMLIMIT", kHostMemory, ReadLsf},
    {"OOMKilled", kHostMemory, ReadKubernetes},
    {"low on resource:", kHostMemory, ReadEvicted},
    {"killed due to memory pressure", kHostMemory, ReadRaySummary},
    {"due to the node running low on memory", kHostMemory, ReadRayTask},
    {"DataLoader worker", kHostMemory, ReadDataLoader},
    {"exitcode", kHostMemory, ReadExitCode},
    {"return code", kHostMemory, ReadExitCode},
    {"exited with code", kHostMemory, ReadExitCode},
    {"Signal 9 (SIGKILL)", kHostMemory, ReadSignal},
    {"<Signals.SIGKILL: 9>", kHostMemory, ReadSignal},
    {"terminated with signal SIGKILL", kHostMemory, ReadSignal},
    {"signal: killed", kHostMemory, ReadSignal},
    {"by signal 9", kHostMemory, ReadSignal},
    {"killed", kHostMemory, ReadShellKilled},

    {"OOM when allocating tensor", kTensorFlow, ReadTensorFlowTensor},
    {"ran out of memory trying to allocate", kTensorFlow, ReadBfcAllocator},
    {"Stats:", kTensorFlow, ReadBfcStats},
    {"failed to allocate", kTensorFlow, ReadStreamExecutor},
    {"RESOURCE_EXHAUSTED:", kJax, ReadResourceExhausted},
    {"Out of memory while trying to allocate", kJax, ReadXlaAllocation},
    {"Out of memory allocating", kJax, ReadCupyOrXla},
    {"Ran out of memory in memory space", kJax, ReadResourceExhausted},
    {"Failed to allocate request for", kJax, ReadXlaAllocation},

    {"alloc_buffer: allocating", kGgml, ReadGgmlCuda},
    {"alloc_tensor_range: failed to allocate", kGgml, ReadGgmlBuffer},
    {"reserve_n: failed to allocate", kGgml, ReadGgmlBuffer},
    {"reserve_n_impl: failed to allocate", kGgml, ReadGgmlBuffer},
    {"alloc_buffer: failed to allocate", kGgml, ReadGgmlBuffer},
    {"error loading model: unable to allocate", kGgml, ReadGgmlBuffer},
    {"failed to allocate buffer for kv cache", kGgml, ReadGgmlCache},
    {"failed to allocate compute", kGgml, ReadGgmlCompute},
    {"Device memory allocation of size", kGgml, ReadGgmlVulkan},
    {"Free memory on device", kServer, ReadVllmStartup},
    {"No available memory for the cache blocks", kServer, ReadVllmNoBlocks},
    {"KV cache is needed", kServer, ReadVllmCacheNeeded},
    {"maximum number of tokens that can be stored in KV cache", kServer, ReadVllmTokens},
    {"Not enough memory. Please try to", kServer, ReadSglang},
    {"Not enough memory to handle", kServer, ReadTextGeneration},

    {"Out of memory error on", kPaddle, ReadPaddle},
    {"out of memory to allocate", kCupy, ReadOldCupy},
    {"std::bad_alloc", kRmm, ReadBadAlloc},
    {"memory for requested buffer of size", kOnnxRuntime, ReadOnnxBuffer},
    {"Available memory of", kOnnxRuntime, ReadOnnxLimit},
    {"CUDA failure 2: out of memory", kOnnxRuntime, ReadOnnxCuda},
    {"Requested amount of", kTensorRt, ReadTensorRtRequest},
    {"Error Code 2: OutOfMemory", kTensorRt, ReadTensorRtError},
    {"Error Code 1: Cuda Runtime (out of memory)", kTensorRt, ReadTensorRtError},
    {"OutOfMemory Error in", kTensorRt, ReadTensorRtError},
    {"allocate: 2 (out of memory)", kTensorRt, ReadTensorRtError},
    {"Could not allocate tensor with", kDirectMl, ReadDirectMl},
    {"[metal::malloc]", kMlx, ReadMlx},
    {"[malloc_or_wait]", kMlx, ReadMlx},
    {"kIOGPUCommandBufferCallbackErrorOutOfMemory", kMlx, ReadMetal},
    {"Error out of memory at line", kBitsandbytes, ReadBitsandbytes},
});

constexpr std::array kLastResorts = std::to_array<Wording>({
    {"out of memory", kUnknown, ReadNothing},
    {"out-of-memory", kUnknown, ReadNothing},
    {"ErrorOutOfDeviceMemory", kUnknown, ReadNothing},
    {"not enough memory", kUnknown, ReadNothing},
    {"insufficient memory", kUnknown, ReadNothing},
});

}  // namespace

std::span<const Wording> Wordings() { return kWordings; }
std::span<const Wording> LastResorts() { return kLastResorts; }

}  // namespace plimsoll
