#include "job/rules/attention.h"

namespace plimsoll {
namespace {

/// Which releases try cuDNN first, on Hopper and the Blackwells of data centres: 2.9 with any cuDNN
/// since 9.9 (pytorch pull request 162073), later ones with cuDNN above 9.15 (171627), which 2.10
/// was not shipped with and 2.11 was. Elsewhere the order is flash, memory-efficient, mathematical.
bool PrefersCudnn(const Gpu& gpu, TorchVersion torch) {
  const ComputeCapability& cc = gpu.capability;
  if (torch == TorchVersion{2, 9}) return (cc.major == 9 || cc.major == 10) && cc.minor == 0;
  return torch >= TorchVersion{2, 11} && (cc.major == 9 || cc.major == 10);
}

/// sdp_utils.cpp. Head sizes above 128 are measured on an H200 only.
bool CudnnTakes(const Attention& a) {
  return a.half() && !a.mask_needs_grad && a.d <= 256 && a.dv <= 256 && a.d % 8 == 0 &&
         a.dv % 8 == 0 && a.sk != 1 && !(a.dropout && a.s == 1);
}

bool FlashTakes(const Attention& a, const Gpu& gpu) {
  const ComputeCapability& cc = gpu.capability;
  if (!a.half() || a.mask || a.d > 256 || a.d != a.dv || cc.major < 8) return false;
  if (a.causal && a.s != a.sk) return false;
  const bool small_shared_memory = (cc.major == 8 && cc.minor >= 6) || cc.major == 12;
  return !small_shared_memory || a.d <= 192 || (a.d > 224 && !a.dropout);
}

bool EfficientTakes(const Attention& a, const Gpu& gpu) {
  if (a.grouped()) return false;
  if (a.dtype != DType::kFloat32 && !a.half()) return false;
  const int major = gpu.capability.major;
  if (a.dtype == DType::kBFloat16 && major < 8) return false;
  const std::int64_t alignment = a.half() && major >= 7 ? 8 : major >= 8 ? 4 : 1;
  return a.d % alignment == 0 && a.dv % alignment == 0;
}

/// Of heads that are broadcast. Until one alone was let pass (pytorch pull request 191085, of July
/// 2026) no kernel but the mathematical form took any; 2.13, asked on the CPU, takes that.
bool FusedTakesHeads(const Attention& a, TorchVersion torch) {
  return !a.broadcast || (a.hk == 1 && torch >= TorchVersion{2, 14});
}

}  // namespace

// All 420 rows of tests/data/operators/attention_sample.jsonl.xz (H200, torch 2.11) take the kernel
// that this says, as did the 1,678 that it is a sample of. Flash is from the source. The Python
// package has the same rules (attention_choice.py), and the same cases are put to both.
AttentionKernel ChooseAttention(const Attention& a, const Gpu& gpu, TorchVersion torch) {
  if (!a.rows_dense || !a.four_dimensional || !FusedTakesHeads(a, torch)) {
    return AttentionKernel::kMath;
  }
  if (PrefersCudnn(gpu, torch) && CudnnTakes(a)) return AttentionKernel::kCudnn;
  if (FlashTakes(a, gpu)) return AttentionKernel::kFlash;
  if (EfficientTakes(a, gpu)) return AttentionKernel::kEfficient;
  return AttentionKernel::kMath;
}

}  // namespace plimsoll
