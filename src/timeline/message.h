// What an out-of-memory message says, whoever wrote it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// Which allocator or library gave up.
enum class MessageSource : std::uint8_t {
  kTorchCuda,       // the caching allocator on NVIDIA GPUs
  kTorchHip,        // the same on AMD GPUs
  kTorchXpu,        // on Intel GPUs
  kTorchMps,        // on Apple GPUs
  kTorchAsync,      // the cudaMallocAsync backend
  kTorchRejected,   // refused beforehand by per_process_memory_fraction
  kTorchAbsurd,     // more than an exabyte was asked for: a bug in a size
  kCudaRuntime,     // "CUDA error: out of memory" without figures
  kCublas,          // CUBLAS_STATUS_ALLOC_FAILED
  kCudnn,           // CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_ALLOC_FAILED
  kNccl,            // NCCL could not get its buffers
  kHostMemory,      // DefaultCPUAllocator, the kernel's or Slurm's oom killer
  kHabana,          // Gaudi's device memory
  kVirtualAddress,  // no address range for an expandable segment: not a lack of memory
  kTensorFlow,
  kJax,
};

/// One "Process 1234 has 3.21 GiB memory in use." of PyTorch 2.1 and newer.
struct ProcessUse {
  std::optional<std::int64_t> pid;  // none: "this process"
  std::optional<Bytes> bytes;       // none: the driver would not say (Windows, WSL)
};

/// Every field is what the text says; what it does not say is empty. Sizes printed with two
/// decimals are exact only to half a unit of the last digit.
struct OomMessage {
  MessageSource source = MessageSource::kTorchCuda;
  /// "PyTorch 2.5 to 2.9", as narrow as the wording allows; "" where it does not tell.
  std::string wording;
  std::optional<int> device;
  std::optional<int> rank;
  std::optional<Bytes> requested;
  std::optional<Bytes> capacity;       // total capacity of the device
  std::optional<Bytes> free;           // free according to the driver
  std::optional<Bytes> allocated;      // in tensors
  std::optional<Bytes> reserved;       // held by the caching allocator, in all
  std::optional<Bytes> reserved_free;  // reserved but not allocated
  std::optional<Bytes> allowed;        // a limit set by the user
  std::optional<Bytes> private_pools;  // free lists of CUDA graphs' pools (mislabelled upstream)
  std::vector<ProcessUse> processes;
  /// MPS: memory of other kinds in the same budget. XLA: what the program needs in all.
  std::optional<Bytes> other;
  /// TensorFlow and JAX: the tensor or operator that was refused.
  std::string subject;
  /// JAX prints its largest buffers with their source: "1.50 GiB train.py:12 dot_general".
  struct Buffer {
    std::optional<Bytes> size;
    std::string where;
    std::string what;
  };
  std::vector<Buffer> buffers;
  /// The source line of the user's program in the traceback above the message, if there is one.
  std::string where;
  /// The text ends in the middle of the message.
  bool cut_off = false;
  /// The library says that it went on with less (TensorFlow's warnings, cuDNN's fallbacks).
  bool survived = false;
  /// Where in the input the message begins: line from 1, and byte offset.
  std::size_t line = 0;
  std::size_t offset = 0;
};

}  // namespace plimsoll
