// Attention and encoder layers of torch.nn that PyTorch computes as one call where nothing is to be
// differentiated: in an evaluation. Orders as recorded on an H200, PyTorch 2.11, of 18 calls in
// float32 and bfloat16.
#include <array>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/matrix.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

struct HeadsOfAttention {
  Bytes source = 0;
  /// Of every pair of places, in all heads.
  Bytes scores = 0;
  /// A mask or the weights are asked for: no fused kernel is taken.
  bool plain = false;
  bool has_mask = false;
};

HeadsOfAttention ReadHeads(const Call& call, std::int64_t heads) {
  const std::optional<Tensor> source = call.TensorArg(0);
  if (!source) return {};
  const Layout& layout = **source;
  const std::int64_t length = layout.sizes.size() > 1 ? layout.sizes[1] : 1;
  const std::int64_t samples = layout.sizes.empty() ? 1 : layout.sizes[0];
  const std::int64_t pairs = Product(Product(samples, heads), Product(length, length));
  return {.source = layout.bytes(), .scores = Product(pairs, ElementSize(layout.dtype))};
}

/// `make` makes the result; what it returns is given back by whoever called.
template <typename Make>
auto Attend(const HeadsOfAttention& heads, int thread, Emitter& emit, const Make& make) {
  const Bytes x = heads.source;
  const Slot projected = emit.Take(Product(3, x));
  // The first product of an evaluation may be this one, which has a bias.
  KeepWorkspacesOfLinear(thread, emit);
  if (!heads.plain) {
    const Slot attended = emit.Take(x);
    auto made = make();
    emit.Give(attended);
    emit.Give(projected);
    return made;
  }
  const Slot apart = emit.Take(Product(3, x));
  emit.Give(projected);
  const Slot scores = emit.Take(heads.scores);
  if (heads.has_mask) emit.Give(emit.Take(heads.scores));
  const Slot attended = emit.Take(x);
  auto made = make();
  emit.Give(attended);
  emit.Give(scores);
  emit.Give(apart);
  return made;
}

// _native_multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias,
//                              proj_weight, proj_bias, mask, need_weights, average, mask_type)
void NativeAttention(const Call& call, Emitter& emit) {
  HeadsOfAttention heads = ReadHeads(call, call.IntArg(4).value_or(1));
  heads.has_mask = call.TensorArg(9).has_value();
  heads.plain = heads.has_mask || call.BoolArg(10, true);
  Attend(heads, call.thread(), emit, [&] {
    MakeResult(call, 0, emit);
    return 0;
  });
}

// _transformer_encoder_layer_fwd(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight,
//                                proj_bias, use_gelu, norm_first, eps, norm_weight_1, norm_bias_1,
//                                norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1,
//                                ffn_weight_2, ffn_bias_2, mask, mask_type)
void EncoderLayer(const Call& call, Emitter& emit) {
  HeadsOfAttention heads = ReadHeads(call, call.IntArg(2).value_or(1));
  heads.plain = heads.has_mask = call.TensorArg(18).has_value();
  const Bytes x = heads.source;
  const std::optional<Tensor> wider = call.TensorArg(14);
  const std::int64_t width = std::max<std::int64_t>(1, call.IntArg(1).value_or(1));
  const std::int64_t hidden =
      wider && !(**wider).sizes.empty() ? (**wider).sizes[0] : Product(4, width);
  const Bytes inner = Product(x / width, hidden);
  const auto take = [&] { return emit.Take(x); };
  if (call.BoolArg(8, false)) {
    const Slot normed = take();
    const Slot attended = Attend(heads, call.thread(), emit, take);
    emit.Give(normed);
    const Slot normed_again = take();
    const Slot between = emit.Take(inner);
    MakeResult(call, 0, emit);
    emit.Give(between);
    emit.Give(normed_again);
    emit.Give(attended);
    return;
  }
  const Slot attended = Attend(heads, call.thread(), emit, take);
  const Slot normed = take();
  emit.Give(attended);
  const Slot between = emit.Take(inner);
  const Slot narrowed = take();
  emit.Give(between);
  MakeResult(call, 0, emit);
  emit.Give(narrowed);
  emit.Give(normed);
}

constexpr std::array kFastPathRules = std::to_array<RuleEntry>({
    {"_native_multi_head_attention", NativeAttention},
    {"_transformer_encoder_layer_fwd", EncoderLayer},
});

}  // namespace

std::span<const RuleEntry> FastPathRules() { return kFastPathRules; }

}  // namespace plimsoll
