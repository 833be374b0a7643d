// Every wording of every out-of-memory text: how it begins, who writes it, and what reads the rest.
// A new wording is one row in wordings.cc and one small function.
#pragma once

#include <span>
#include <string_view>

#include "readers/wordings/scanner.h"
#include "timeline/message.h"

namespace plimsoll {

struct Wording {
  std::string_view opening;
  MessageSource source;
  /// Reads what follows the opening. `before` is what stands in front of it, at most 200 bytes.
  /// False: the words mean something else here.
  bool (*read)(Scanner& scanner, std::string_view before, OomMessage& message);
};

/// The wordings that tell whose memory ran out.
std::span<const Wording> Wordings();
/// Words that only say that memory ran out: for a text in which none of the others is.
std::span<const Wording> LastResorts();

using WordingReader = bool(Scanner& scanner, std::string_view before, OomMessage& message);

// wordings_torch.cc: the allocators of PyTorch.
WordingReader ReadTorch, ReadTorchHeadless, ReadTorchCapacity, ReadXpuBlock, ReadNvmlAssert,
    ReadBrokenSegment, ReadTorchRejectedWarning, ReadTorchAsync, ReadTorchMps, ReadMpsBuffer,
    ReadAscend, ReadAscendDriver, ReadVirtualAddress;

// wordings_cuda.cc: the CUDA runtime and the libraries on it, which give hardly any figures.
WordingReader ReadCudaRuntime, ReadCublas, ReadOldCublas, ReadCudnn, ReadCudnnNoAlgorithm,
    ReadNcclCalloc, ReadNcclFailure, ReadHabana, ReadCublasHandle, ReadCudaCall, ReadTensorRtLlm,
    ReadTooLargeToLoad, ReadNoBatchSize, ReadHipInUse;

// wordings_host.cc: requests for the host's memory that failed.
WordingReader ReadCpuAllocator, ReadPosixMemalign, ReadNumpy, ReadErrno, ReadMemoryError,
    ReadPageFile, ReadSharedMemory, ReadSharedMap, ReadSharedFile, ReadPinnedHost, ReadAllocOnHost,
    ReadSharedWrite, ReadNcclShared, ReadNcclSegment, ReadJavaHeap, ReadAlreadyMapped,
    ReadDriverMemory;

// wordings_kills.cc: processes that were killed.
WordingReader ReadKernelKill, ReadKernelConstraint, ReadCgroupLimit, ReadReaper, ReadInvoked,
    ReadCgroupUsage, ReadSlurm, ReadSlurmLimit, ReadSlurmState, ReadBatchLimit, ReadLsf,
    ReadKubernetes, ReadEvicted, ReadRaySummary, ReadRayTask, ReadDataLoader, ReadExitCode,
    ReadSignal, ReadShellKilled, ReadSystemd, ReadRayStore, ReadKilledProcess, ReadSystemdShare,
    ReadEarlyOom, ReadSystemOom, ReadDask, ReadCondor;

// wordings_xla.cc: TensorFlow and JAX.
WordingReader ReadTensorFlowTensor, ReadBfcAllocator, ReadBfcStats, ReadStreamExecutor,
    ReadResourceExhausted, ReadXlaAllocation;

// wordings_libraries.cc: libraries with allocators of their own.
WordingReader ReadPaddle, ReadCupyOrXla, ReadOldCupy, ReadBadAlloc, ReadOnnxBuffer, ReadOnnxLimit,
    ReadOnnxCuda, ReadTensorRtRequest, ReadTensorRtError, ReadDirectMl, ReadMlx, ReadMetal,
    ReadBitsandbytes, ReadXgboost, ReadCudaJl;

// wordings_serving.cc: programs that serve models.
WordingReader ReadGgmlCuda, ReadGgmlBuffer, ReadGgmlCache, ReadGgmlCompute, ReadGgmlVulkan,
    ReadVllmStartup, ReadVllmNoBlocks, ReadVllmCacheNeeded, ReadVllmTokens, ReadSglang,
    ReadTextGeneration, ReadOllamaSystem, ReadOllamaTooLarge, ReadVllmSwap, ReadSglangPool;

}  // namespace plimsoll
