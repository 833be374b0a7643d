// Layer, group, instance and batch normalization.
#include <algorithm>
#include <array>
#include <vector>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/reduction.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

/// A copy of an input that is not contiguous, until it is done. (8 rows, and 240
/// calls of recorded jobs)
void LayerNormRule(const Call& call, Emitter& emit) {
  const Slot copy = CopyUnlessContiguous(call, 0, emit);
  MakeAll(call, emit);
  emit.Give(copy);
}

/// With very many short rows the gradients of weight and bias are first summed by blocks, and the
/// sums of those replace them (layer_norm_kernel.cu). (36 rows)
struct RowBlocks {
  Bytes bytes = 0;
  Layout sums;

  RowBlocks(const Layout& input, const Layout& weight, const Gpu& gpu) {
    const std::int64_t length = weight.Numel();
    const std::int64_t rows = length > 0 ? input.Numel() / length : 0;
    if (rows <= 64 * 1024 || length / 32 >= gpu.multiprocessors / 2) return;
    const std::int64_t across = CeilDiv(length, 32);
    const std::int64_t down = std::min(32 * 1024 / across, CeilDiv(rows, 32));
    sums = {.dtype = weight.dtype, .sizes = {down, length}, .strides = {length, 1}};
    bytes = sums.bytes();
  }
};

void MakeBySums(const Call& call, const RowBlocks& blocks, std::span<const std::size_t> results,
                Emitter& emit) {
  std::array<Slot, 2> replaced;
  std::array<Slot, 2> partial;
  const std::int64_t rows[] = {0};
  for (std::size_t i = 0; i < results.size(); ++i) {
    replaced[i] = emit.Take(call.FreshBytes(results[i]));
  }
  for (std::size_t i = 0; i < results.size(); ++i) partial[i] = emit.Take(blocks.bytes);
  for (std::size_t i = 0; i < results.size(); ++i) {
    emit.Make(results[i]);
    Reduce(emit, blocks.sums, rows);
    emit.Give(replaced[i]);
  }
  for (std::size_t i = results.size(); i-- > 0;) emit.Give(partial[i]);
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, mask)
// _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, mask)
void LayerNormBackward(const Call& call, Emitter& emit) {
  const Slot input_copy = CopyUnlessContiguous(call, 1, emit);
  const auto input = call.TensorArg(1);
  const bool rms = call.op().find("rms_norm") != std::string_view::npos;
  const auto weight = call.TensorArg(rms ? 4 : 5);
  std::vector<std::size_t> affine;
  for (std::size_t result = 1; result < std::min<std::size_t>(call.results(), 3); ++result) {
    if (const auto fresh = call.FreshOfResult(result)) affine.push_back(*fresh);
  }
  MakeResult(call, 0, emit);
  std::optional<RowBlocks> blocks;
  if (input && weight) blocks.emplace(**input, **weight, emit.gpu());
  if (blocks && blocks->bytes > 0) {
    const Slot grad_copy = CopyUnlessContiguous(call, 0, emit);
    MakeBySums(call, *blocks, affine, emit);
    emit.Give(grad_copy);
  } else {
    MakeAll(call, emit);
    emit.Give(CopyUnlessContiguous(call, 0, emit));
  }
  emit.Give(input_copy);
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps): a scale and a shift, in fp32, for
// each channel of each image, unless that is one element. (44 rows)
void GroupNorm(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  if (call.IntArg(5) == 1) return;
  const Bytes channels = 4 * call.IntArg(3).value_or(0) * call.IntArg(4).value_or(0);
  const Slot scale = emit.Take(channels);
  const Slot shift = emit.Take(channels);
  emit.Give(shift);
  emit.Give(scale);
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, mask) (44 rows)
void GroupNormBackward(const Call& call, Emitter& emit) {
  const Slot grad_copy = CopyUnlessContiguous(call, 0, emit);
  MakeAll(call, emit);
  const Bytes images = 4 * call.IntArg(5).value_or(0);
  const Bytes channels = images * call.IntArg(6).value_or(0);
  const Bytes groups = images * call.IntArg(8).value_or(0);
  const Slot sum_products = emit.Take(channels);
  const Slot sums = emit.Take(channels);
  const Slot c2 = emit.Take(groups);
  const Slot c3 = emit.Take(groups);
  const Slot c1 = emit.Take(call.IntArg(7) == 1 ? 0 : channels);
  emit.Give(c3);
  emit.Give(c2);
  emit.Give(c1);
  emit.Give(sums);
  emit.Give(sum_products);
  emit.Give(grad_copy);
}

struct PixelsAndChannels {
  std::int64_t pixels = 0;
  std::int64_t channels = 0;
};
/// Of a tensor in channels-last order, or of two dimensions; nothing of others, whose kernels take
/// no memory.
PixelsAndChannels ChannelsLast(const std::optional<Tensor>& tensor) {
  if (!tensor || (*tensor)->Numel() == 0) return {};
  const bool rows = (*tensor)->dims() == 2 && (*tensor)->IsContiguous();
  if (!rows && !(*tensor)->IsChannelsLast()) return {};
  const std::int64_t channels = (*tensor)->sizes[1];
  return {.pixels = (*tensor)->Numel() / channels, .channels = channels};
}

/// cuDNN: fp32 (19 rows), or fp16 with fp32 weights, as under autocast (4 rows).
void CudnnBatchNorm(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto input = call.TensorArg(0);
  const auto [pixels, channels] = ChannelsLast(input);
  if (channels == 0) return;
  const std::int64_t groups = CeilDiv(channels, 64);
  const std::int64_t of_block = IsHalf((*input)->dtype) ? 160 : 64;
  emit.Give(emit.Take(516 * CeilDiv(pixels, of_block) * groups + 4 * groups + 1072));
}

void CudnnBatchNormBackward(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto [pixels, channels] = ChannelsLast(call.TensorArg(0));
  if (channels == 0) return;
  const std::int64_t groups = CeilDiv(channels, 64);
  emit.Give(emit.Take(512 * CeilDiv(pixels, 96) * groups + 4 * groups + 1056));
}

/// PyTorch's own kernel for channels-last tensors: blocks of threads that share a channel leave
/// `values` numbers a channel each and count themselves off. (10 rows in bf16 with bf16 weights, 4
/// with fp32 weights, as under autocast)
void SumChannels(const PixelsAndChannels& size, std::int64_t values, Emitter& emit) {
  if (size.channels == 0) return;
  const std::int64_t most = FloorPow2(size.channels);
  std::int64_t x = std::min<std::int64_t>(most, 32);
  const std::int64_t y = std::min(FloorPow2(CeilDiv(size.pixels, 16)), 512 / x);
  if (x * y != 512) x = std::min(most, 512 / y);
  const std::int64_t blocks = std::min<std::int64_t>(CeilDiv(size.pixels, y * 16), 128);
  if (blocks < 8) return;
  const Slot staging = emit.Take(4 * values * size.channels * blocks);
  const Slot semaphores = emit.Take(4 * CeilDiv(size.channels, x));
  emit.Give(semaphores);
  emit.Give(staging);
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
void NativeBatchNorm(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  if (call.BoolArg(5, true)) SumChannels(ChannelsLast(call.TensorArg(0)), 4, emit);
}

// native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean,
//                            save_invstd, train, eps, output_mask)
void NativeBatchNormBackward(const Call& call, Emitter& emit) {
  const PixelsAndChannels size = ChannelsLast(call.TensorArg(1));
  if (size.channels == 0 || !call.BoolArg(7, true)) return MakeAll(call, emit);
  const Slot sum = emit.Take(4 * size.channels);
  const Slot sum_products = emit.Take(4 * size.channels);
  MakeResult(call, 1, emit);
  MakeResult(call, 2, emit);
  SumChannels(size, 2, emit);
  MakeResult(call, 0, emit);
  emit.Give(sum_products);
  emit.Give(sum);
}

constexpr std::array kNormalizationRules = std::to_array<RuleEntry>({
    {"native_layer_norm", LayerNormRule},
    {"native_layer_norm_backward", LayerNormBackward},
    {"_fused_rms_norm", LayerNormRule},
    {"_fused_rms_norm_backward", LayerNormBackward},
    {"native_group_norm", GroupNorm},
    {"native_group_norm_backward", GroupNormBackward},
    {"cudnn_batch_norm", CudnnBatchNorm},
    {"cudnn_batch_norm_backward", CudnnBatchNormBackward},
    {"native_batch_norm", NativeBatchNorm},
    {"_native_batch_norm_legit", NativeBatchNorm},
    {"native_batch_norm_backward", NativeBatchNormBackward},
});

}  // namespace

std::span<const RuleEntry> NormalizationRules() { return kNormalizationRules; }

}  // namespace plimsoll
