// Scaled dot-product attention: which kernel runs, and what each one takes and keeps.
#pragma once

#include <optional>

#include "job/calls/emitter.h"

namespace plimsoll {

enum class AttentionKernel { kMath, kFlash, kEfficient, kCudnn };

/// One call, forward or backward. Sizes are named as PyTorch's documentation does: batch, heads,
/// length of the query (s) and of key and value (sk), size of a head (d; of the values dv).
struct Attention {
  std::int64_t b = 1, h = 1, hk = 1, s = 1, sk = 1, d = 1, dv = 1;
  DType dtype = DType::kFloat32;
  /// Bytes of an element.
  Bytes el = 4;
  std::optional<Layout> mask;
  bool mask_needs_grad = false;
  /// There will be a backward.
  bool needs_grad = true;
  bool causal = false;
  bool dropout = false;
  /// In memory the query goes through its heads before its positions: a transposed view.
  bool query_transposed = false;
  /// The last dimension of query, key, value and mask lies in a row: all but the mathematical form
  /// insist on it. T5's learned bias does not.
  bool rows_dense = true;
  /// Batch, heads, positions, and a head's own: likewise. Nested transformers have blocks besides.
  bool four_dimensional = true;

  /// Fewer heads of keys and values, and nothing says that they are groups (enable_gqa): Falcon's
  /// one head. The heads are broadcast.
  bool broadcast = false;

  bool half() const { return IsHalf(dtype); }
  bool grouped() const { return h != hk; }
  /// The mathematical form repeats keys and values of groups before it begins.
  bool repeats() const { return grouped() && !broadcast; }
  bool bool_mask() const { return mask && mask->dtype == DType::kBool; }
  /// Of the output, and of the gradient of the query.
  Bytes output() const { return b * h * s * dv * el; }
  Bytes query() const { return b * h * s * d * el; }
  Bytes key() const { return b * hk * sk * d * el; }
  Bytes value() const { return b * hk * sk * dv * el; }
};

/// plimsoll.attention or plimsoll.attention_backward; nothing where the shapes make no sense.
std::optional<Attention> ReadAttention(const Call& call);

AttentionKernel ChooseAttention(const Attention& a, const Gpu& gpu, TorchVersion torch);

/// What a forward leaves for its backward, held for the storage of the logsumexp or of the output.
/// The names are the order in which they go when the graph is freed.
enum AttentionHeld : int {
  kHeldMask = -2,
  kHeldLogsumexp = -1,
  kHeldSeed = 1,
  kHeldOffset = 2,
  // The mathematical form, and flash's padded copies.
  kHeldScaledQuery = 3,
  kHeldValue = 4,
  kHeldScaledKey = 5,
  kHeldSoftmax = 6,
  kHeldDropoutMask = 7,
  kHeldDropped = 8,
};

/// Where the pieces of a call go. A gradient that nobody asked for is taken and given back.
struct AttentionSinks {
  /// The storages for which the rest is held: the output's, with the state of the random numbers,
  /// and the logsumexp's.
  Storage seeds = kElsewhere;
  Storage held = kElsewhere;
  std::optional<std::size_t> output, logsumexp;
  std::optional<std::size_t> grad_query, grad_key, grad_value, grad_mask;
};

void MathForward(const Attention& a, const AttentionSinks& sinks, int thread, Emitter& emit);
void MathBackward(const Attention& a, const AttentionSinks& sinks, int thread, Emitter& emit);

/// The two scalars and the mask in the type of the query that a mask of bools becomes. The copy is
/// held; the scalars are given back.
void ConvertBoolMask(const Attention& a, const AttentionSinks& sinks, Emitter& emit);
/// Makes a result where there is one; else takes a block.
Slot MakeOrTake(const std::optional<std::size_t>& fresh, Bytes bytes, Emitter& emit);

}  // namespace plimsoll
