#include "readers/error_text/wordings.h"

#include <array>

namespace plimsoll {
namespace {

using enum MessageSource;

// Blanks in the openings stand for any blanks, line ends and prefixes, or none.
constexpr std::array<Wording, 34> kWordings = {{
    {"CUDA out of memory", kTorchCuda, ReadTorch},
    {"HIP out of memory", kTorchHip, ReadTorch},
    {"XPU out of memory", kTorchXpu, ReadTorch},
    {"MPS backend out of memory", kTorchMps, ReadTorchMps},
    {"Preemptively rejecting allocation:", kTorchRejected, ReadTorchRejectedWarning},
    {"Allocation on device", kTorchAsync, ReadTorchAsync},
    {"[ExpandableSegmentVA]", kVirtualAddress, ReadVirtualAddress},

    {"CUDA error: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"HIP error: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"CUDA driver error: out of memory", kCudaRuntime, ReadCudaRuntime},
    {"cuda runtime error (2) : out of memory", kCudaRuntime, ReadCudaRuntime},
    {"cudaErrorMemoryAllocation", kCudaRuntime, ReadCudaRuntime},
    {"CUDA_ERROR_OUT_OF_MEMORY", kCudaRuntime, ReadCudaRuntime},
    {"CUBLAS_STATUS_ALLOC_FAILED", kCublas, ReadCublas},
    {"CUDNN_STATUS_ALLOC_FAILED", kCudnn, ReadCudnn},
    {"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", kCudnn, ReadCudnn},
    {"Failed to CUDA calloc", kNccl, ReadNcclCalloc},
    {"Cuda failure 'out of memory'", kNccl, ReadNcclFailure},
    {"Cuda failure 2 'out of memory'", kNccl, ReadNcclFailure},
    {"MODULE:PT_DEVMEM", kHabana, ReadHabana},

    {"DefaultCPUAllocator:", kHostMemory, ReadCpuAllocator},
    {"Unable to allocate", kHostMemory, ReadNumpy},
    {"ut of memory: Kill", kHostMemory, ReadKernelKill},
    {"oom-kill:constraint=", kHostMemory, ReadKernelConstraint},
    {"Detected", kHostMemory, ReadSlurm},
    {"OOMKilled", kHostMemory, ReadKubernetes},

    {"OOM when allocating tensor", kTensorFlow, ReadTensorFlowTensor},
    {"ran out of memory trying to allocate", kTensorFlow, ReadBfcAllocator},
    {"failed to allocate", kTensorFlow, ReadStreamExecutor},
    {"RESOURCE_EXHAUSTED:", kJax, ReadResourceExhausted},
    {"Out of memory while trying to allocate", kJax, ReadXlaAllocation},
    {"Out of memory allocating", kJax, ReadXlaAllocation},
    {"Ran out of memory in memory space", kJax, ReadResourceExhausted},
    {"Failed to allocate request for", kJax, ReadXlaAllocation},
}};

}  // namespace

std::span<const Wording> Wordings() { return kWordings; }

}  // namespace plimsoll
