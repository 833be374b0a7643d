// The GPUs that people own: what each holds, how fast it is, and what PyTorch takes of it.
// Figures of data sheets and of measured runs only; docs/gpus.md says which is which.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace plimsoll {

enum class GpuKind { kConsumer, kWorkstation, kDataCentre };
enum class GpuVendor { kNvidia, kAmd };

struct ComputeCapability {
  int major = 0;
  int minor = 0;

  auto operator<=>(const ComputeCapability&) const = default;
};

/// Peak rates of matrix products in FLOP/s: dense (no sparsity) and summed up in fp32, as PyTorch
/// asks for it. GeForce cards do 16 bit at half the rate that their boxes advertise because of
/// that.
struct MatrixRates {
  /// Without tensor cores: what fp32 gets unless TF32 is allowed.
  double fp32 = 0;
  /// Without a value: no hardware for it. PyTorch still computes bf16 there, slowly.
  std::optional<double> tf32;
  double fp16 = 0;
  std::optional<double> bf16;
  std::optional<double> fp8;
};

struct Interconnect {
  /// To other GPUs, bytes/s in one direction; 0 where there is no NVLink (AMD's: Infinity Fabric).
  /// A bridge or a board with NVLink is needed too, so this is what the card can do, not what a
  /// machine has.
  double nvlink = 0;
  int pcie_generation = 0;
  int pcie_lanes = 16;
  /// To the host, bytes/s in one direction: PCIe, or NVLink-C2C where CPU and GPU are one module.
  double host = 0;
  bool host_is_c2c = false;
};

/// How a figure of a card is known.
enum class FigureBasis {
  kMeasured,      // on this card, by us
  kMeasuredHere,  // on the user's own, by plimsoll.calibrate
  kAlike,         // on a card with the same chip
  kScaled,        // by a line through readings of other cards
  kAssumed,       // nobody is known to have read it
};

/// What a process takes of the device besides PyTorch's reserved memory: the context, the code of
/// the kernels it has used, the handles of cuBLAS and cuDNN. NCCL's buffers come on top.
struct ContextSize {
  Bytes bytes = 0;
  Bytes low = 0;
  Bytes high = 0;
  FigureBasis basis = FigureBasis::kAssumed;
};

struct Gpu {
  std::string name;
  /// Other spellings, torch.cuda.get_device_name()'s among them.
  std::vector<std::string> aliases;
  GpuKind kind = GpuKind::kConsumer;
  GpuVendor vendor = GpuVendor::kNvidia;
  /// The total of torch.cuda.mem_get_info(): less than what is printed on the box. Differs by up to
  /// 1 % between drivers (the newer ones keep more for themselves), and with ECC.
  Bytes memory = 0;
  /// What other processes hold of the card; `memory` is what they leave.
  Bytes taken = 0;
  /// A part of a card (MIG).
  bool slice = false;
  /// The host's memory is this one.
  bool unified = false;
  /// Of a unified memory what the system was seen to hold; `memory` is what it leaves.
  Bytes system = 0;
  /// How much less and more others have of it: by other drivers, or beside other systems.
  Bytes less_elsewhere = 0;
  Bytes more_elsewhere = 0;
  /// Somebody's driver said so; else the marketed size less what the driver keeps of similar cards.
  bool memory_is_measured = false;
  /// Of an AMD card that of the kernels that it is taken to have.
  ComputeCapability capability;
  /// What AMD calls the architecture; empty for NVIDIA's.
  std::string gfx;
  int multiprocessors = 0;
  int threads_per_multiprocessor = 0;
  /// Of the memory, bytes/s.
  double bandwidth = 0;
  MatrixRates rates;
  Interconnect interconnect;
  /// What PyTorch allocates for cuBLAS for each thread and stream that multiplies matrices
  /// (getChosenWorkspaceSize), from release 2.12 on.
  Bytes cublas_workspace = 0;
  /// The same up to release 2.11, which had not heard of Blackwell.
  Bytes cublas_workspace_before_2_12 = 0;
  /// As soon as CUDA is in use.
  ContextSize bare;
  /// After a few training steps.
  ContextSize context;
  /// Only the memory was given; everything else is that of the card `like`.
  bool assumed = false;
  std::string like;

  /// What mem_get_info() calls the total.
  Bytes Total() const { return memory + taken + system; }
  /// What is left of it where it is least.
  Bytes LeastMemory() const { return memory - less_elsewhere; }
};

/// The card beside other processes; an error where they leave nothing.
Result<Gpu> Beside(Gpu gpu, Bytes others);

/// The catalogue: consumer, workstation, data centre; within each by age, then by size.
const std::vector<Gpu>& Gpus();

/// A part of a card (MIG) has its name too: "A100 40GB 3g.20gb".
/// By name or alias, whatever the case, spaces and dashes ("RTX 4090", "4090", "A100-80GB",
/// "NVIDIA GeForce RTX 4090"), or by the size of its memory alone ("22GiB").
Result<Gpu> FindGpu(std::string_view text);

}  // namespace plimsoll
