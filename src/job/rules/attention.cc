#include "job/rules/attention.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "job/calls/arithmetic.h"
#include "job/rules/rules.h"

namespace plimsoll {
Slot MakeOrTake(const std::optional<std::size_t>& fresh, Bytes bytes, Emitter& emit) {
  if (!fresh) return emit.Take(bytes);
  emit.Make(*fresh, bytes);
  return {};
}

void ConvertBoolMask(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  if (!a.bool_mask()) return;
  const Slot zero = emit.Take(a.el);
  const Slot infinity = emit.Take(a.el);
  emit.Hold(sinks.held, kHeldMask, a.mask->Numel() * a.el);
  emit.Give(zero);
  emit.Give(infinity);
}

namespace {

/// The gradients of query, key and value, in that order; what nobody asked for is given back by
/// `Drop`.
struct Gradients {
  std::array<Slot, 3> unwanted;

  void Drop(Emitter& emit) const {
    for (auto slot = unwanted.rbegin(); slot != unwanted.rend(); ++slot) emit.Give(*slot);
  }
};
Gradients MakeGradients(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  Gradients made;
  made.unwanted[0] = MakeOrTake(sinks.grad_query, a.query(), emit);
  made.unwanted[1] = MakeOrTake(sinks.grad_key, a.key(), emit);
  made.unwanted[2] = MakeOrTake(sinks.grad_value, a.value(), emit);
  return made;
}

/// The logsumexp. Held rather than made, so that a backward can give it back at the right moment.
void MakeLogsumexp(const AttentionSinks& sinks, Bytes bytes, Emitter& emit) {
  if (sinks.logsumexp) emit.Make(*sinks.logsumexp, 0);
  emit.Hold(sinks.held, kHeldLogsumexp, bytes);
}
/// cuDNN and the memory-efficient kernel make none where there will be no backward. (10 calls)
void MakeLogsumexpForBackward(const Attention& a, const AttentionSinks& sinks, Bytes bytes,
                              Emitter& emit) {
  MakeLogsumexp(sinks, a.needs_grad ? bytes : 0, emit);
}

/// What autograd's node lets go of, in its order: the logsumexp, the output, the state of the
/// random numbers. That hangs on the output; if the user keeps the output, it goes now.
void ReleaseSaved(const AttentionSinks& sinks, Emitter& emit) {
  if (emit.DiesSoon(sinks.seeds)) return;
  emit.GiveHeld(sinks.held, kHeldLogsumexp);
  emit.GiveHeld(sinks.seeds, kHeldSeed);
  emit.GiveHeld(sinks.seeds, kHeldOffset);
}

// --- cuDNN (922 rows) ---

void CudnnForward(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  ConvertBoolMask(a, sinks, emit);
  emit.Hold(sinks.seeds, kHeldSeed, 8);
  emit.Hold(sinks.seeds, kHeldOffset, 8);
  emit.Give(MakeOrTake(sinks.output, a.output(), emit));
  MakeLogsumexpForBackward(a, sinks, 4 * a.b * a.h * a.s, emit);
  emit.Give(emit.Take(256));
}

void CudnnBackward(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  const Gradients gradients = MakeGradients(a, sinks, emit);
  // dQ in fp32, the row sums of dO·O, and for grouped heads dK and dV of every head.
  Bytes workspace = RoundUp(4 * a.b * a.h * a.s * a.d, 128) + 4 * a.b * a.h * a.s + 256;
  if (a.grouped()) workspace += 2 * RoundUp(a.b * a.h * a.sk * a.d * a.el, 128);
  emit.Give(emit.Take(workspace));
  gradients.Drop(emit);
  emit.GiveHeld(sinks.held, kHeldMask);
  ReleaseSaved(sinks, emit);
}

// --- Memory-efficient (605 rows) ---

std::int64_t RowsOfMask(const Attention& a) {
  const bool scalar = a.mask->sizes.empty() || a.mask->sizes.back() == 0;
  return scalar ? 0 : a.mask->Numel() / a.mask->sizes.back();
}

/// Rows of a mask are made a multiple of 8 long.
void PadMask(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  if (!a.mask) return;
  const bool aligned = a.sk % 8 == 0;
  const Bytes padded = RowsOfMask(a) * RoundUp(a.sk, 8) * a.el;
  if (!a.bool_mask()) {
    if (!aligned) emit.Hold(sinks.held, kHeldMask, padded);
    return;
  }
  const Slot zero = emit.Take(a.el);
  const Slot infinity = emit.Take(a.el);
  const Bytes converted = a.mask->Numel() * a.el;
  if (aligned) emit.Hold(sinks.held, kHeldMask, converted);
  const Slot unpadded = aligned ? Slot{} : emit.Take(converted);
  emit.Give(zero);
  emit.Give(infinity);
  if (!aligned) emit.Hold(sinks.held, kHeldMask, padded);
  emit.Give(unpadded);
}

void EfficientForward(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  PadMask(a, sinks, emit);
  emit.Give(MakeOrTake(sinks.output, a.output(), emit));
  MakeLogsumexpForBackward(a, sinks, 4 * a.b * a.h * RoundUp(a.s, 32), emit);
  // The output does not stay in registers and is added up in fp32.
  if (a.half() && a.dv > 128) emit.Give(emit.Take(4 * a.b * a.h * a.s * a.dv));
}

/// One accumulator of dQ a block of queries, with a lock of 16 bytes; for heads too large for
/// registers also dK and dV of every split of the keys (kernel_backward.h, workspace_size).
Bytes EfficientWorkspace(const Attention& a) {
  const std::int64_t d = std::max(a.d, a.dv);
  const std::int64_t block_i = d <= 64 ? 64 : 128;
  const std::int64_t block_j = d <= 64 || !a.half() || d > 128 ? 64 : 128;
  Bytes of_head = CeilDiv(a.s, block_i) * CeilDiv(d, block_j) * (16 + 4 * block_i * block_j);
  if (a.half() && d > 128) {
    std::int64_t splits = CeilDiv(a.sk, block_j);
    if (a.b * a.h >= 256 && a.sk <= 2 * block_j) splits = 1;
    splits =
        std::max<std::int64_t>(1, std::min(splits, 200 / std::max<std::int64_t>(a.b * a.h, 1)));
    of_head += 2 * 4 * splits * block_j * RoundUp(d, block_i);
  }
  return a.b * a.h * RoundUp(of_head, 16);
}

/// The kernel gives the gradient of the mask for every head of the whole batch, with rows a
/// multiple of 16 long. It is summed where the mask was expanded, and cut.
struct MaskGradient {
  Bytes whole, gradient, padded;
  bool sum, cut;

  explicit MaskGradient(const Attention& a) {
    const std::int64_t rows = RowsOfMask(a);
    whole = a.b * a.h * a.s * RoundUp(a.sk, 16) * a.el;
    gradient = a.mask->Numel() * a.el;
    padded = rows * RoundUp(a.sk, 8) * a.el;
    sum = a.mask->Numel() < a.b * a.h * a.s * a.sk;
    cut = a.sk % 8 != 0;
  }
  /// It lies in what the kernel gave.
  bool in_place() const { return !sum && !cut; }

  void Finish(const AttentionSinks& sinks, Slot current, Emitter& emit) const {
    if (sum) {
      const Slot summed = cut ? emit.Take(gradient) : MakeOrTake(sinks.grad_mask, gradient, emit);
      emit.Give(current);
      current = summed;
    }
    if (!cut) return emit.Give(current);
    const Slot scattered = emit.Take(padded);
    emit.Give(current);
    emit.Give(MakeOrTake(sinks.grad_mask, gradient, emit));
    emit.Give(scattered);
  }
};

/// The row sums of dO·O: in 16 bit by a kernel, else as a product and its sum.
Slot RowSums(const Attention& a, Emitter& emit) {
  const Bytes rows = 4 * a.b * a.h * a.s;
  if (a.half()) return emit.Take(rows);
  const Slot product = emit.Take(a.output());
  const Slot sum = emit.Take(rows);
  const Slot dense = emit.Take(rows);
  emit.Give(sum);
  emit.Give(product);
  return dense;
}

/// A copy with the layout (batch, position, head, element), if it has another.
Slot CopyUnlessDense(const Layout& layout, Emitter& emit) {
  const bool dense = layout.dims() != 4 || layout.IsContiguousIn({0, 2, 1, 3});
  return dense ? Slot{} : emit.Take(layout.bytes());
}

void EfficientBackward(const Attention& a, const Layout& grad_output, const AttentionSinks& sinks,
                       Emitter& emit) {
  const Slot copy = CopyUnlessDense(grad_output, emit);
  const Gradients gradients = MakeGradients(a, sinks, emit);
  std::optional<MaskGradient> mask;
  if (a.mask_needs_grad) mask.emplace(a);
  Slot whole;
  if (mask) {
    whole =
        mask->in_place() ? MakeOrTake(sinks.grad_mask, mask->whole, emit) : emit.Take(mask->whole);
  }
  const Slot row_sums = RowSums(a, emit);
  const Slot workspace = emit.Take(EfficientWorkspace(a));
  emit.Give(row_sums);
  emit.Give(workspace);
  emit.Give(copy);
  gradients.Drop(emit);
  emit.GiveHeld(sinks.held, kHeldMask);
  if (!mask) return;
  // The graph lets go of the logsumexp before the sum over the batch.
  emit.GiveHeld(sinks.held, kHeldLogsumexp);
  mask->Finish(sinks, whole, emit);
}

// --- Flash: from flash_attn/flash_api.cpp (pytorch 03b7c19), checked on 13 calls ---

/// Into how many parts the keys are split so that the GPU is busy.
std::int64_t FlashSplits(const Attention& a, const Gpu& gpu) {
  if (a.dropout) return 1;
  const std::int64_t block_n = a.d <= 64 ? 256 : a.d <= 128 ? 128 : 64;
  const std::int64_t blocks = CeilDiv(a.sk, block_n);
  const std::int64_t work = a.b * a.h * CeilDiv(a.s, 64);
  const std::int64_t at_once = 2 * gpu.multiprocessors;
  if (at_once <= 0 || static_cast<double>(work) >= 0.8 * static_cast<double>(at_once)) return 1;
  const std::int64_t most = std::min({std::int64_t{128}, at_once, blocks});
  const auto eligible = [&](std::int64_t n) {
    return n == 1 || CeilDiv(blocks, n) != CeilDiv(blocks, n - 1);
  };
  const auto efficiency = [&](std::int64_t n) {
    const std::int64_t waves = CeilDiv(work * n, at_once);
    return static_cast<double>(work * n) / static_cast<double>(waves * at_once);
  };
  double best = 0;
  for (std::int64_t n = 1; n <= most; ++n) {
    if (eligible(n)) best = std::max(best, efficiency(n));
  }
  for (std::int64_t n = 1; n <= most; ++n) {
    if (eligible(n) && efficiency(n) >= 0.85 * best) return n;
  }
  return 1;
}

std::int64_t FlashHead(std::int64_t d) { return RoundUp(RoundUp(d, 8), d <= 128 ? 32 : 64); }

void FlashForward(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  // Heads are padded to a multiple of 8; the copies stay for the backward.
  if (a.d % 8 != 0) {
    const Bytes row = RoundUp(a.d, 8) * a.el;
    emit.Hold(sinks.held, kHeldScaledQuery, a.b * a.h * a.s * row);
    emit.Hold(sinks.held, kHeldScaledKey, a.b * a.hk * a.sk * row);
    emit.Hold(sinks.held, kHeldValue, a.b * a.hk * a.sk * row);
  }
  emit.Give(MakeOrTake(sinks.output, a.b * a.h * a.s * RoundUp(a.d, 8) * a.el, emit));
  MakeLogsumexp(sinks, 4 * a.b * a.h * a.s, emit);
  const std::int64_t splits = FlashSplits(a, emit.gpu());
  const Bytes rows = splits > 1 ? 4 * splits * a.b * a.h * a.s : 0;
  const Slot part_sums = emit.Take(rows);
  const Slot parts = emit.Take(rows * FlashHead(a.d));
  emit.Hold(sinks.seeds, kHeldSeed, 16);
  emit.Hold(sinks.seeds, kHeldOffset, 8);
  if (a.dropout) emit.Give(emit.Take(16));  // the state is made anew and the first one dropped
  emit.Give(part_sums);
  emit.Give(parts);
}

/// Row sums, dQ in fp32, and for grouped heads dK and dV of every head.
void FlashTemporaries(const Attention& a, Emitter& emit) {
  const std::int64_t s = RoundUp(a.s, 128);
  const Slot row_sums = emit.Take(4 * a.b * a.h * s);
  const Slot accumulator = emit.Take(4 * a.b * s * a.h * FlashHead(a.d));
  const Bytes expanded = a.grouped() ? a.b * a.sk * a.h * a.d * a.el : 0;
  const Slot key = emit.Take(expanded);
  const Slot value = emit.Take(expanded);
  for (const Slot slot : {value, key, accumulator, row_sums}) emit.Give(slot);
}

/// Of padded heads: the gradient of the output is padded, and those of the inputs are cut at the
/// end.
void FlashBackwardPadded(const Attention& padded, const Attention& a, const AttentionSinks& sinks,
                         Emitter& emit) {
  const Slot grad_output = emit.Take(padded.output());
  const Slot grad_copy = emit.Take(padded.output());
  const Slot output_copy = emit.Take(padded.output());
  const Slot query = emit.Take(padded.query());
  const Slot key = emit.Take(padded.key());
  const Slot value = emit.Take(padded.value());
  FlashTemporaries(padded, emit);
  for (const Slot slot : {output_copy, grad_copy, grad_output}) emit.Give(slot);
  for (const int name : {kHeldScaledKey, kHeldScaledQuery, kHeldValue}) {
    emit.GiveHeld(sinks.held, name);
  }
  ReleaseSaved(sinks, emit);
  const auto cut = [&](const std::optional<std::size_t>& fresh, Bytes bytes, Slot whole) {
    const Slot unwanted = MakeOrTake(fresh, bytes, emit);
    emit.Give(whole);
    emit.Give(unwanted);
  };
  cut(sinks.grad_value, a.value(), value);
  cut(sinks.grad_key, a.key(), key);
  cut(sinks.grad_query, a.query(), query);
}

void FlashBackward(const Attention& a, const Layout& grad_output, const Layout& output,
                   const AttentionSinks& sinks, Emitter& emit) {
  if (a.d % 8 != 0) {
    Attention padded = a;
    padded.d = padded.dv = RoundUp(a.d, 8);
    return FlashBackwardPadded(padded, a, sinks, emit);
  }
  const Slot grad_copy = CopyUnlessDense(grad_output, emit);
  const Slot output_copy = CopyUnlessDense(output, emit);
  const Gradients gradients = MakeGradients(a, sinks, emit);
  FlashTemporaries(a, emit);
  emit.Give(output_copy);
  emit.Give(grad_copy);
  gradients.Drop(emit);
  ReleaseSaved(sinks, emit);
}

// --- The calls ---

/// Query, key, value and mask stand at `first` and after.
std::optional<Attention> ReadShapes(const Call& call, std::size_t first) {
  const auto query = call.TensorArg(first);
  const auto key = call.TensorArg(first + 1);
  const auto value = call.TensorArg(first + 2);
  if (!query || !key || !value) return std::nullopt;
  const Layout& q = **query;
  const Layout& k = **key;
  const Layout& v = **value;
  if (q.dims() < 3 || k.dims() != q.dims() || v.dims() != q.dims()) return std::nullopt;
  const std::size_t n = q.dims();
  Attention a;
  for (std::size_t d = 0; d + 3 < n; ++d) a.b *= q.sizes[d];
  a.four_dimensional = n == 4;
  a.h = q.sizes[n - 3];
  a.hk = k.sizes[n - 3];
  a.s = q.sizes[n - 2];
  a.sk = k.sizes[n - 2];
  a.d = q.sizes[n - 1];
  a.dv = v.sizes[n - 1];
  a.dtype = q.dtype;
  a.el = ElementSize(q.dtype);
  a.needs_grad = query->needs_grad || key->needs_grad || value->needs_grad;
  a.query_transposed = a.b > 1 && a.h > 1 && q.strides[n - 3] < q.strides[n - 2];
  if (const Argument* groups = call.Keyword("enable_gqa")) {
    a.broadcast = a.grouped() && !call.BoolOf(groups, true);
  }
  a.rows_dense = q.strides[n - 1] == 1 && k.strides[n - 1] == 1 && v.strides[n - 1] == 1;
  if (const auto mask = call.TensorArg(first + 3)) {
    a.mask = **mask;
    a.mask_needs_grad = mask->needs_grad;
    a.rows_dense =
        a.rows_dense && !mask->layout->strides.empty() && mask->layout->strides.back() == 1;
  }
  return a;
}

// plimsoll.attention(query, key, value, mask, dropout, is_causal, …) -> output, logsumexp
std::optional<Attention> ReadForward(const Call& call) {
  std::optional<Attention> a = ReadShapes(call, 0);
  if (!a) return a;
  a->dropout = call.FloatArg(4, 0.0) > 0;
  if (const Argument* dropout = call.Keyword("dropout_p")) {
    if (const auto* p = std::get_if<double>(&dropout->is)) a->dropout = *p > 0;
  }
  a->causal = call.BoolArg(5, call.BoolOf(call.Keyword("is_causal"), false));
  if (const Argument* mask = call.Keyword("attn_mask")) {
    if (const auto tensor = call.TensorOf(*mask)) {
      a->mask = **tensor;
      a->mask_needs_grad = tensor->needs_grad;
    }
  }
  return a;
}

void Forward(const Call& call, Emitter& emit) {
  const std::optional<Attention> a = ReadForward(call);
  if (!a || call.results() == 0) return;
  AttentionSinks sinks;
  sinks.output = call.FreshOfResult(0);
  sinks.logsumexp = call.results() > 1 ? call.FreshOfResult(1) : std::nullopt;
  sinks.held = call.Result(sinks.logsumexp ? 1 : 0).storage;
  sinks.seeds = a->needs_grad ? call.Result(0).storage : sinks.held;
  switch (ChooseAttention(*a, emit.gpu(), emit.torch())) {
    case AttentionKernel::kCudnn:
      return CudnnForward(*a, sinks, emit);
    case AttentionKernel::kEfficient:
      return EfficientForward(*a, sinks, emit);
    case AttentionKernel::kFlash:
      return FlashForward(*a, sinks, emit);
    case AttentionKernel::kMath:
      return MathForward(*a, sinks, call.thread(), emit);
  }
}

// plimsoll.attention_backward(grad_output, query, key, value, mask, output, logsumexp, dropout,
//                             is_causal, [wants query, key, value, mask])
std::optional<Attention> ReadBackward(const Call& call) {
  std::optional<Attention> a = ReadShapes(call, 1);
  if (!a) return a;
  a->dropout = call.FloatArg(7, 0.0) > 0;
  a->causal = call.BoolArg(8, false);
  std::vector<bool> wants = call.BoolsArg(9);
  wants.resize(4, wants.empty());
  a->mask_needs_grad = a->mask && wants[3];
  return a;
}

void Backward(const Call& call, Emitter& emit) {
  const std::optional<Attention> a = ReadBackward(call);
  const auto grad_output = call.TensorArg(0);
  const auto output = call.TensorArg(5);
  const auto logsumexp = call.TensorArg(6);
  if (!a || !grad_output || !output) return;
  AttentionSinks sinks;
  sinks.seeds = output->storage;
  sinks.held = logsumexp ? logsumexp->storage : output->storage;
  // Those of query, key and value are made together or not at all.
  if (call.results() >= 3) {
    sinks.grad_query = call.FreshOfResult(0);
    sinks.grad_key = call.FreshOfResult(1);
    sinks.grad_value = call.FreshOfResult(2);
  }
  if (a->mask_needs_grad && call.results() > 0) {
    sinks.grad_mask = call.FreshOfResult(call.results() - 1);
  }
  switch (ChooseAttention(*a, emit.gpu(), emit.torch())) {
    case AttentionKernel::kCudnn:
      return CudnnBackward(*a, sinks, emit);
    case AttentionKernel::kEfficient:
      return EfficientBackward(*a, **grad_output, sinks, emit);
    case AttentionKernel::kFlash:
      return FlashBackward(*a, **grad_output, **output, sinks, emit);
    case AttentionKernel::kMath:
      return MathBackward(*a, sinks, call.thread(), emit);
  }
}

constexpr std::array kAttentionRules = std::to_array<RuleEntry>({
    {"attention", Forward},
    {"attention_backward", Backward},
});

}  // namespace

std::span<const RuleEntry> AttentionRules() { return kAttentionRules; }

std::optional<Attention> ReadAttention(const Call& call) {
  return call.op().ends_with("backward") ? ReadBackward(call) : ReadForward(call);
}

}  // namespace plimsoll
