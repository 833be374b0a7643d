// Memory and multiprocessors as `nvidia-smi mig -lgip` lists them; CUDA has slightly less. A100
// 40GB 3g: XuehaiPan/nvitop issue 8; 7g.80gb: ollama/ollama issue 2264, the same as without MIG;
// H100 NVL: NVIDIA/mig-parted issue 101; H100: jbarrow.ai/field_notes/nvidia-mig. The others of the
// A100 are estimated from these. Shares of the memory's rate: NVIDIA's guide to MIG.
#include "hardware/slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "hardware/context.h"

namespace plimsoll {
namespace {

struct Slice {
  const char* card;
  const char* profile;
  int multiprocessors;
  Bytes mib;
  bool measured;
  /// Of eight of the memory's parts.
  int eighths;
  /// How people call the card.
  const char* brief;
};

constexpr Slice kSlices[] = {
    {"A100 40GB SXM", "1g.5gb", 14, 4864, false, 1, "A100 40GB"},
    {"A100 40GB SXM", "2g.10gb", 28, 9984, false, 2, "A100 40GB"},
    {"A100 40GB SXM", "3g.20gb", 42, 19968, true, 4, "A100 40GB"},
    {"A100 40GB SXM", "4g.20gb", 56, 19968, false, 4, "A100 40GB"},
    {"A100 80GB SXM", "1g.10gb", 14, 9728, false, 1, "A100 80GB"},
    {"A100 80GB SXM", "2g.20gb", 28, 19968, false, 2, "A100 80GB"},
    {"A100 80GB SXM", "3g.40gb", 42, 40192, false, 4, "A100 80GB"},
    {"A100 80GB SXM", "7g.80gb", 98, 81050, true, 8, "A100 80GB"},
    {"H100 SXM", "1g.10gb", 16, 9984, true, 1, "H100"},
    {"H100 SXM", "1g.20gb", 26, 20091, true, 2, "H100"},
    {"H100 SXM", "2g.20gb", 32, 20091, true, 2, "H100"},
    {"H100 SXM", "3g.40gb", 60, 40448, true, 4, "H100"},
    {"H100 SXM", "4g.40gb", 64, 40448, true, 4, "H100"},
    {"H100 NVL", "1g.12gb", 16, 11008, true, 1, "H100 NVL"},
    {"H100 NVL", "2g.24gb", 32, 22139, true, 2, "H100 NVL"},
    {"H100 NVL", "3g.47gb", 60, 47493, true, 4, "H100 NVL"},
};

void Scale(MatrixRates& rates, double share) {
  rates.fp32 *= share;
  rates.fp16 *= share;
  for (std::optional<double>* rate : {&rates.tf32, &rates.bf16, &rates.fp8}) {
    if (*rate) **rate *= share;
  }
}

/// As it is called, and as torch calls it: "NVIDIA A100-SXM4-40GB MIG 3g.20gb".
std::vector<std::string> AliasesOf(const Gpu& card, const Slice& slice) {
  std::vector<std::string> names = card.aliases;
  names.push_back(card.name);
  std::vector<std::string> aliases;
  for (const std::string& name : names) {
    if (name != slice.brief) aliases.push_back(fmt::format("{} {}", name, slice.profile));
    aliases.push_back(fmt::format("{} MIG {}", name, slice.profile));
  }
  return aliases;
}

Gpu Cut(const Gpu& card, const Slice& slice) {
  Gpu gpu = card;
  gpu.name = fmt::format("{} {}", slice.brief, slice.profile);
  gpu.aliases = AliasesOf(card, slice);
  gpu.slice = true;
  gpu.memory = slice.mib * kMiB;
  gpu.memory_is_measured = slice.measured;
  gpu.less_elsewhere = 0;
  gpu.more_elsewhere = 0;
  gpu.multiprocessors = slice.multiprocessors;
  gpu.bandwidth *= slice.eighths / 8.0;
  Scale(gpu.rates, double(slice.multiprocessors) / card.multiprocessors);
  // Parts cannot reach other GPUs.
  gpu.interconnect.nvlink = 0;
  SetContext(gpu);
  return gpu;
}

}  // namespace

void AddSlices(std::vector<Gpu>& gpus) {
  for (const Slice& slice : kSlices) {
    const auto card = std::ranges::find(gpus, slice.card, &Gpu::name);
    PLIMSOLL_CHECK(card != gpus.end());
    Gpu part = Cut(*card, slice);
    gpus.push_back(std::move(part));
  }
}

}  // namespace plimsoll
