// Every wording of every out-of-memory text: how it begins, who writes it, and what reads the rest.
// A new wording is one row in wordings.cc and one small function.
#pragma once

#include <span>
#include <string_view>

#include "readers/error_text/scanner.h"
#include "timeline/message.h"

namespace plimsoll {

struct Wording {
  std::string_view opening;
  MessageSource source;
  /// Reads what follows the opening. `before` is what stands in front of it, at most 200 bytes.
  /// False: the words mean something else here.
  bool (*read)(Scanner& scanner, std::string_view before, OomMessage& message);
};

std::span<const Wording> Wordings();

// wordings_torch.cc: the allocators of PyTorch.
bool ReadTorch(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadTorchRejectedWarning(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadTorchAsync(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadTorchMps(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadVirtualAddress(Scanner& scanner, std::string_view before, OomMessage& message);

// wordings_cuda.cc: the CUDA runtime and the libraries on it, which give hardly any figures.
bool ReadCudaRuntime(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadCublas(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadCudnn(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadNcclCalloc(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadNcclFailure(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadHabana(Scanner& scanner, std::string_view before, OomMessage& message);

// wordings_host.cc: the memory of the host.
bool ReadCpuAllocator(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadNumpy(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadKernelKill(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadKernelConstraint(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadSlurm(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadKubernetes(Scanner& scanner, std::string_view before, OomMessage& message);

// wordings_xla.cc: TensorFlow and JAX.
bool ReadTensorFlowTensor(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadBfcAllocator(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadStreamExecutor(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadResourceExhausted(Scanner& scanner, std::string_view before, OomMessage& message);
bool ReadXlaAllocation(Scanner& scanner, std::string_view before, OomMessage& message);

}  // namespace plimsoll
