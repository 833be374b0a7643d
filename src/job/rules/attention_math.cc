// Attention as plain operators, in fp32 whatever the type of the query. With grouped heads as 151
// measured rows have it; without, as one trace of T5 in fp32 has it, whose tensors all lie
// as (batch, position, head); with broadcast ones as torch 2.13 takes it apart itself.
#include "job/rules/attention.h"
#include "job/rules/matrix.h"

namespace plimsoll {
namespace {

/// Bytes in fp32.
struct Sizes {
  Bytes query, key, value;
  /// Key and value once a head of the query.
  Bytes all_keys, all_values;
  Bytes output;
  /// One number, and one byte, for each pair of positions of each head.
  Bytes scores, pairs;
  /// One byte for each pair of positions.
  Bytes square;

  explicit Sizes(const Attention& a)
      : query(4 * a.b * a.h * a.s * a.d),
        key(4 * a.b * a.hk * a.sk * a.d),
        value(4 * a.b * a.hk * a.sk * a.dv),
        all_keys(4 * a.b * a.h * a.sk * a.d),
        all_values(4 * a.b * a.h * a.sk * a.dv),
        output(4 * a.b * a.h * a.s * a.dv),
        scores(4 * a.b * a.h * a.s * a.sk),
        pairs(a.b * a.h * a.s * a.sk),
        square(a.s * a.sk) {}
};

/// The lower triangle of ones, its complement, two scalars, and the mask of 0 and -inf.
Slot CausalMask(const Sizes& size, Emitter& emit) {
  const Slot ones = emit.Take(size.square);
  const Slot triangle = emit.Take(size.square);
  emit.Give(ones);
  const Slot zero = emit.Take(4);
  const Slot infinity = emit.Take(4);
  const Slot mask = emit.Take(4 * size.square);
  emit.Give(zero);
  emit.Give(infinity);
  emit.Give(triangle);
  return mask;
}

/// What autograd saves stays for the backward. Where it saves nothing, in the first forward of a
/// checkpoint and without gradients, that goes with the variables of the function.
class Saving {
 public:
  Saving(const Attention& a, Storage storage, Emitter& emit)
      : saves_(a.needs_grad && !emit.DiesSoon(storage)), storage_(storage), emit_(emit) {}

  /// To be given back when its variable goes; nothing is left of it then if it is saved.
  Slot Keep(AttentionHeld name, Bytes bytes) {
    if (!saves_ || bytes == 0) return emit_.Take(bytes);
    emit_.Hold(storage_, name, bytes);
    return {};
  }
  bool saves() const { return saves_; }

 private:
  bool saves_;
  Storage storage_;
  Emitter& emit_;
};

/// Rows that are masked everywhere become 0, which takes a search for them.
Slot SafeSoftmax(const Attention& a, const Sizes& size, Saving& saving, Emitter& emit) {
  const Slot softmax = saving.Keep(kHeldSoftmax, size.scores);
  const Slot masked = emit.Take(size.pairs);
  const Slot rows = emit.Take(a.b * a.h * a.s);
  emit.Give(emit.Take(4));
  emit.Give(rows);
  emit.Give(masked);
  return softmax;
}

/// What the values are multiplied with.
Slot DropSome(const Attention& a, const Sizes& size, Slot softmax, Saving& saving, Emitter& emit) {
  if (!a.dropout) return softmax;
  const Slot mask = saving.Keep(kHeldDropoutMask, size.pairs);
  const Slot dropped = saving.Keep(kHeldDropped, size.scores);
  emit.Give(mask);
  emit.Give(softmax);
  return dropped;
}

/// The gradient of the mask: a sum over the batch, in the type of the query.
Slot TakeMaskGradient(const Attention& a, const AttentionSinks& sinks, Emitter& emit) {
  const Bytes gradient = 4 * a.h * a.s * a.sk;
  if (a.b == 1) return MakeOrTake(sinks.grad_mask, a.half() ? gradient / 2 : gradient, emit);
  if (!a.half()) return MakeOrTake(sinks.grad_mask, gradient, emit);
  const Slot sum = emit.Take(gradient);
  const Slot unwanted = MakeOrTake(sinks.grad_mask, gradient / 2, emit);
  emit.Give(sum);
  return unwanted;
}

}  // namespace

void MathForward(const Attention& a, const AttentionSinks& sinks, int thread, Emitter& emit) {
  const Sizes size(a);
  const bool half = a.half();
  Saving saving(a, sinks.held, emit);
  ConvertBoolMask(a, sinks, emit);
  // The products want their arguments in a row. Repeated keys and values are; else what is copied
  // for a product is kept for the backward, and the original goes.
  const bool copies_query = !a.repeats() && a.query_transposed;
  const bool copies_keys = !a.repeats() && (a.query_transposed || a.broadcast);
  const Slot query = emit.Take(half ? size.query : 0);
  const Slot key = emit.Take(half ? size.key : 0);
  const Bytes wide_value = half ? size.value : 0;
  const Slot value =
      a.repeats() || copies_keys ? emit.Take(wide_value) : saving.Keep(kHeldValue, wide_value);
  const Slot scaled_query =
      copies_query ? emit.Take(size.query) : saving.Keep(kHeldScaledQuery, size.query);
  const Slot causal = a.causal ? CausalMask(size, emit) : Slot{};
  const Slot all_keys = emit.Take(a.repeats() ? size.all_keys : 0);
  const Slot all_values = a.repeats() ? saving.Keep(kHeldValue, size.all_values) : Slot{};
  const Slot scaled_key =
      copies_keys ? emit.Take(size.key) : saving.Keep(kHeldScaledKey, size.all_keys);
  const Slot query_row = copies_query ? saving.Keep(kHeldScaledQuery, size.query)
                                      : emit.Take(a.query_transposed ? size.query : 0);
  const Slot key_row = copies_keys ? saving.Keep(kHeldScaledKey, size.all_keys) : Slot{};
  const Slot scores = emit.Take(size.scores);
  KeepCublasWorkspace(thread, emit);
  emit.Give(key_row);
  if (!saving.saves()) emit.Give(query_row);
  emit.Give(scaled_key);
  const Slot softmax = SafeSoftmax(a, size, saving, emit);
  emit.Give(scores);
  const Slot weights = DropSome(a, size, softmax, saving, emit);
  const Slot half_softmax = emit.Take(half ? size.scores / 2 : 0);
  const Slot value_row = copies_keys ? saving.Keep(kHeldValue, size.all_values) : Slot{};
  if (sinks.logsumexp) emit.Make(*sinks.logsumexp, 0);
  const Slot product = half ? emit.Take(size.output) : MakeOrTake(sinks.output, size.output, emit);
  emit.Give(value_row);
  if (half) emit.Give(MakeOrTake(sinks.output, a.output(), emit));
  emit.Give(product);
  emit.Give(weights);
  emit.Give(all_values);
  emit.Give(all_keys);
  if (saving.saves()) emit.Give(query_row);
  emit.Give(scaled_query);
  emit.GiveHeld(sinks.held, kHeldMask);
  emit.Give(causal);
  for (const Slot slot : {key, value, query, half_softmax}) emit.Give(slot);
}

void MathBackward(const Attention& a, const AttentionSinks& sinks, int thread, Emitter& emit) {
  const Sizes size(a);
  const bool half = a.half();
  const auto result = [&](const std::optional<std::size_t>& fresh, Bytes bytes) {
    return half ? emit.Take(bytes) : MakeOrTake(fresh, bytes, emit);
  };
  const Slot grad_output = emit.Take(half ? size.output : 0);
  const Slot all_values =
      a.grouped() ? emit.Take(size.all_values) : result(sinks.grad_value, size.value);
  KeepCublasWorkspace(thread, emit);
  Slot probabilities = emit.Take(size.scores);
  emit.Give(grad_output);
  emit.GiveHeld(sinks.held, kHeldValue);
  // Of broadcast heads the gradient is their sum, as soon as there is one.
  const Slot summed_values = a.broadcast ? result(sinks.grad_value, size.value) : Slot{};
  if (a.broadcast) emit.Give(all_values);
  if (a.dropout) {
    emit.GiveHeld(sinks.held, kHeldDropped);
    const Slot kept = emit.Take(size.scores);
    emit.Give(probabilities);
    probabilities = kept;
    emit.GiveHeld(sinks.held, kHeldDropoutMask);
  }
  // The backward of the softmax.
  const Slot product = emit.Take(size.scores);
  const bool scores_are_gradient = a.mask_needs_grad && a.b == 1 && !half;
  const Slot scores =
      scores_are_gradient ? TakeMaskGradient(a, sinks, emit) : emit.Take(size.scores);
  emit.Give(product);
  emit.Give(probabilities);
  emit.GiveHeld(sinks.held, kHeldSoftmax);
  const Slot grad_mask =
      a.mask_needs_grad && !scores_are_gradient ? TakeMaskGradient(a, sinks, emit) : Slot{};

  const Slot scaled_key = emit.Take(size.all_keys);
  const Slot scaled_query = emit.Take(size.query);
  emit.Give(scores);
  emit.GiveHeld(sinks.held, kHeldScaledKey);
  emit.GiveHeld(sinks.held, kHeldScaledQuery);
  const Slot keys = emit.Take(a.repeats() ? size.all_keys : a.broadcast ? size.key : 0);
  if (a.grouped()) emit.Give(scaled_key);
  // With groups these are sums over the heads of each, first of the keys.
  const Slot key = result(sinks.grad_key, size.key);
  emit.Give(a.grouped() ? keys : scaled_key);
  const Slot value = a.broadcast   ? summed_values
                     : a.repeats() ? result(sinks.grad_value, size.value)
                                   : all_values;
  if (a.repeats()) emit.Give(all_values);
  const Slot query = result(sinks.grad_query, size.query);
  emit.Give(scaled_query);
  Slot half_key, half_value, half_query;
  if (half) {
    half_key = MakeOrTake(sinks.grad_key, a.key(), emit);
    emit.Give(key);
    half_value = MakeOrTake(sinks.grad_value, a.value(), emit);
    emit.Give(value);
    half_query = MakeOrTake(sinks.grad_query, a.query(), emit);
    emit.Give(query);
  } else {
    half_key = key;
    half_value = value;
    half_query = query;
  }
  for (const Slot slot : {half_key, half_value, half_query, grad_mask}) emit.Give(slot);
}

}  // namespace plimsoll
