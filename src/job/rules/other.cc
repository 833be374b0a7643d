// Operators of other kinds: softmax, losses, resampling, dropout, recurrent layers, sums of
// gradients.
#include <algorithm>
#include <array>
#include <vector>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/reduction.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

/// The engine adds a gradient to one that is there already in place, unless the older one is a view
/// (docs/prediction.md, "Losses and the rest"); a capture sees a new tensor.
bool IsSumOfGradients(const Call& call, const Tensor& older, const Tensor& newer,
                      const Emitter& emit) {
  return call.stage() == Stage::kBackward && !older.view && !older.needs_grad &&
         !newer.needs_grad && older->sizes == newer->sizes && emit.DiesSoon(older.storage);
}

/// linear() of three dimensions or more adds its bias to the product in place; a capture, again,
/// sees a new tensor.
bool IsBiasOfLinear(const Tensor& product, const Tensor& bias, const Emitter& emit) {
  return product->dims() >= 3 && bias->dims() == 1 && bias->sizes[0] == product->sizes.back() &&
         bias->dtype == product->dtype && product->IsContiguous() && emit.DiesSoon(product.storage);
}

void Add(const Call& call, Emitter& emit) {
  const auto a = call.TensorArg(0);
  const auto b = call.TensorArg(1);
  if (a && b && call.fresh() == 1 && a->storage != kElsewhere && b->storage != kElsewhere &&
      (*a)->bytes() == call.FreshBytes(0) && (*a)->dtype == call.Result(0)->dtype &&
      (IsSumOfGradients(call, *a, *b, emit) || IsBiasOfLinear(*a, *b, emit))) {
    emit.Reuse(0, a->storage);
  }
  MakeAll(call, emit);
}

/// The product of gradient and output. (16 rows, and every recorded job with a softmax)
void SoftmaxBackward(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto gradient = call.TensorArg(0);
  if (gradient) emit.Give(emit.Take((*gradient)->bytes()));
}

/// A dense copy of the input, made after the output. (40 rows: over the channels of NHWC tensors)
void WithCopyOfInput(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  emit.Give(CopyUnlessContiguous(call, 0, emit));
}

/// The kernels for images read channels-last tensors as well; anything else is copied.
void WithCopyUnlessImage(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto gradient = call.TensorArg(0);
  if (!gradient || (*gradient)->IsContiguous() || (*gradient)->IsChannelsLast()) return;
  emit.Give(emit.Take((*gradient)->bytes()));
}

/// The mask is made before the output. (8 rows)
void Dropout(const Call& call, Emitter& emit) {
  MakeResult(call, 1, emit);
  MakeResult(call, 0, emit);
}

/// One pass a dimension.
void RollInTwoParts(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  const std::size_t passes = std::max<std::size_t>(call.IntsArg(1).size(), 1);
  Slot before;
  for (std::size_t i = 0; self && i + 1 < passes; ++i) {
    const Slot rolled = emit.Take((*self)->bytes());
    emit.Give(before);
    before = rolled;
  }
  MakeAll(call, emit);
  emit.Give(before);
}

constexpr std::int64_t kNoReduction = 0;

// mse_loss(self, target, reduction) and smooth_l1_loss: the scalar lies in memory for a loss of
// every element, which was asked for before the reduction was looked at. (16 rows)
void LossInLargeStorage(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  if (!self || call.fresh() == 0 || call.IntArg(2).value_or(1) == kNoReduction) {
    return MakeAll(call, emit);
  }
  emit.Make(0, (*self)->bytes());
  const Slot losses = emit.Take((*self)->bytes());
  Reduce(emit, **self, {});
  emit.Give(losses);
}

// binary_cross_entropy(self, target, weight, reduction) and soft_margin_loss(self, target,
// reduction): the same, but the scalar is first made elsewhere. (4 rows)
template <std::size_t kReductionArg>
void LossThenCopied(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  if (!self || call.fresh() == 0 || call.IntArg(kReductionArg).value_or(1) == kNoReduction) {
    return MakeAll(call, emit);
  }
  emit.Make(0, (*self)->bytes());
  const Slot scalar = emit.Take(ElementSize((*self)->dtype));
  Reduce(emit, **self, {});
  emit.Give(scalar);
}

// huber_loss(self, target, reduction, delta) (2 rows)
void HuberLoss(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  if (!self || call.IntArg(2).value_or(1) == kNoReduction) return MakeAll(call, emit);
  const Slot losses = emit.Take((*self)->bytes());
  MakeAll(call, emit);
  Reduce(emit, **self, {});
  emit.Give(losses);
}

// binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction) (12 rows)
void LogitsLoss(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  if (!self) return MakeAll(call, emit);
  const Bytes bytes = (*self)->bytes();
  const Slot log_sigmoid = emit.Take(bytes);
  if (const auto pos_weight = call.TensorArg(3)) {
    const Slot less_one = emit.Take((*pos_weight)->bytes());
    const Slot of_targets = emit.Take(bytes);
    emit.Give(less_one);
    emit.Give(of_targets);
  }
  const bool reduces = call.IntArg(4).value_or(1) != kNoReduction;
  const Slot losses = emit.Take(reduces ? bytes : 0);
  MakeAll(call, emit);
  if (reduces) Reduce(emit, **self, {});
  emit.Give(losses);
  emit.Give(log_sigmoid);
}

// im2col(self, …) and col2im: the output is first made like the input, and grows if it must. It
// never shrinks, so that a result can lie in more memory than it needs. (28 rows)
void MadeLikeInput(const Call& call, Emitter& emit) {
  const auto input = call.TensorArg(0);
  if (!input || call.fresh() != 1) return MakeAll(call, emit);
  const Bytes like_input = (*input)->bytes();
  const bool grows = call.FreshBytes(0) > like_input;
  const Slot first = emit.Take(grows ? like_input : 0);
  if (!grows) emit.Make(0, like_input);
  const Slot copy = CopyUnlessContiguous(call, 0, emit);
  emit.Make(0);
  emit.Give(first);
  emit.Give(copy);
}

// grid_sampler_2d_backward(grad, input, grid, …, output_mask): the gradient of the grid is made
// even if nobody wants it. (20 rows)
void GridSamplerBackward(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto grid = call.TensorArg(2);
  if (grid && !call.FreshOfResult(1)) emit.Give(emit.Take((*grid)->bytes()));
}

/// The norms of a list of tensors, first by pieces of 65,536 elements. (52 rows: clip_grad_norm_)
void NormsOfList(const Call& call, Emitter& emit) {
  std::int64_t pieces = 0;
  const std::vector<Tensor> tensors = call.TensorsArg(0);
  for (const Tensor& tensor : tensors) {
    pieces = std::max(pieces, CeilDiv(tensor->Numel(), 65536));
  }
  const Slot of_pieces = emit.Take(4 * pieces * static_cast<std::int64_t>(tensors.size()));
  MakeAll(call, emit);
  emit.Give(of_pieces);
}

constexpr std::array kOtherRules = std::to_array<RuleEntry>({
    {"add", Add},
    {"_foreach_norm", NormsOfList},
    {"_softmax_backward_data", SoftmaxBackward},
    {"_log_softmax", WithCopyOfInput},
    {"_softmax", WithCopyOfInput},
    {"upsample_bilinear2d_backward", WithCopyUnlessImage},
    {"_upsample_bilinear2d_aa_backward", WithCopyOfInput},
    {"reflection_pad2d", WithCopyOfInput},
    {"avg_pool3d_backward", WithCopyOfInput},
    {"upsample_nearest2d_backward", WithCopyUnlessImage},
    {"upsample_bicubic2d_backward", WithCopyOfInput},
    {"native_dropout", Dropout},
    {"roll", RollInTwoParts},
    {"mse_loss", LossInLargeStorage},
    {"smooth_l1_loss", LossInLargeStorage},
    {"binary_cross_entropy", LossThenCopied<3>},
    {"soft_margin_loss", LossThenCopied<2>},
    {"huber_loss", HuberLoss},
    {"binary_cross_entropy_with_logits", LogitsLoss},
    {"im2col", MadeLikeInput},
    {"col2im", MadeLikeInput},
    {"grid_sampler_2d_backward", GridSamplerBackward},
});

}  // namespace

std::span<const RuleEntry> OtherRules() { return kOtherRules; }

}  // namespace plimsoll
