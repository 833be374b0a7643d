// Matrix products and attention.
#include "job/time/kernel_rules.h"

#include <algorithm>
#include <cmath>

#include "job/rules/attention.h"
#include "job/time/product_time.h"
#include "job/time/traffic.h"

namespace plimsoll {
namespace {

/// By how many bytes, up to 16, every row of the matrix begins aligned.
double AlignmentOf(const Layout& layout) {
  const std::size_t n = layout.dims();
  if (n < 2) return 16;
  const std::int64_t lead = std::max(layout.strides[n - 1], layout.strides[n - 2]);
  double bytes = 16;
  while (bytes > 2 && std::fmod(double(lead) * double(ElementSize(layout.dtype)), bytes) != 0) {
    bytes /= 2;
  }
  return bytes;
}

KernelTime Product(const Call& call, const TimeContext& context, std::size_t left) {
  const auto a = call.TensorArg(left);
  const auto b = call.TensorArg(left + 1);
  if (!a || !b || (*a)->dims() < 2 || (*b)->dims() < 2) return Pointwise(call, context);
  const Layout& x = **a;
  const Layout& y = **b;
  const std::size_t n = x.dims();
  const ProductShape shape{.m = double(x.sizes[n - 2]),
                           .n = double(y.sizes.back()),
                           .k = double(x.sizes[n - 1]),
                           .batches = n > 2 ? double(x.sizes[0]) : 1};
  const TimeModel& models = context.model;
  double aligned = std::min(AlignmentOf(x), AlignmentOf(y));
  if (call.results() > 0) aligned = std::min(aligned, AlignmentOf(*call.Result(0)));
  const double moved = MemoryTime(TrafficOf(call).bytes(), models.memory);
  const auto time_in = [&](const ProductModel& model) {
    const double slower = aligned <= 2 ? model.at_2_bytes : aligned <= 8 ? model.at_8_bytes : 1;
    const double computed = slower * ProductTime(shape, model, models.multiprocessors);
    return model.start + std::max(computed, moved);
  };
  const bool batched = shape.batches > 1;
  const bool half = IsHalf(x.dtype);
  double us = time_in(batched ? half ? models.batched_half : models.batched_fp32
                      : half  ? models.half
                              : models.fp32);
  // It is allowed, not demanded: where a card gains little by it, cuBLAS has the other kernels too.
  if (!half && context.matmul_tf32) {
    us = std::min(us, time_in(batched ? models.batched_tf32 : models.tf32));
  }
  return {.us = us, .kernels = 1};
}

KernelTime MathAttention(const Attention& a, bool backward, const TimeContext& context) {
  const TimeModel& models = context.model;
  const ProductModel& model = a.half() ? models.half : models.fp32;
  const double batches = double(a.b) * double(a.h);
  const double scores = batches * double(a.s) * double(a.sk) * double(a.el);
  const double product =
      ProductTime({.m = double(a.s), .n = double(a.sk), .k = double(a.d), .batches = batches},
                  model, models.multiprocessors);
  const double passes = MemoryTime((backward ? 8 : 6) * scores, models.memory);
  return {.us = (backward ? 4 : 2) * (product + model.start) + passes + 4 * models.memory.start,
          .kernels = backward ? 10.0 : 6.0};
}

/// Of queries, and of keys: kernels work on squares of so many.
constexpr double kTile = 64;

double Tiles(std::int64_t length) { return std::ceil(double(length) / kTile); }

/// How much longer it takes since some multiprocessors have nothing to do. The forward has a block
/// of threads for each tile of queries. So has cuDNN's backward for those of keys; the efficient
/// one has them wait for each other, since all add to the gradients of the same queries.
double Idle(const Attention& a, bool backward, bool efficient, const AttentionModel& model,
            int multiprocessors) {
  double tiles = backward ? Tiles(a.sk) : Tiles(a.s);
  if (backward && efficient) tiles = std::min(tiles, Tiles(a.s));
  const double filled = backward ? model.filled_backward : model.filled_forward;
  return std::max(1.0, filled * multiprocessors / std::max(1.0, double(a.b * a.h) * tiles));
}

/// Kernels are built for heads of these widths.
double PaddedHead(double d) { return d <= 32 ? 32 : d <= 64 ? 64 : std::ceil(d / 128) * 128; }

}  // namespace

KernelTime PlainProduct(const Call& call, const TimeContext& context) {
  return Product(call, context, 0);
}
KernelTime AddedProduct(const Call& call, const TimeContext& context) {
  return Product(call, context, 1);
}

KernelTime AttentionTime(const Call& call, const TimeContext& context) {
  const std::optional<Attention> a = ReadAttention(call);
  if (!a) return Pointwise(call, context);
  const bool backward = call.op().ends_with("backward");
  const AttentionKernel kernel = ChooseAttention(*a, context.gpu, context.torch);
  if (kernel == AttentionKernel::kMath) return MathAttention(*a, backward, context);
  const TimeModel& models = context.model;
  const AttentionModel& model = kernel != AttentionKernel::kEfficient ? models.cudnn_attention
                                : a->half()                           ? models.efficient_half
                                                                      : models.efficient_fp32;
  // A tile that is not full takes as long as one that is: generation has one query.
  const double rows = std::max(double(a->s), kTile);
  const double width = PaddedHead(double(a->d)) + PaddedHead(double(a->dv)) +
                       2 * (backward ? model.extra_backward : model.extra_forward);
  double flops = 2.0 * double(a->b) * double(a->h) * Tiles(a->s) * Tiles(a->sk) * kTile * kTile *
                 width * (backward ? 2.5 : 1);
  if (a->causal) flops *= std::min(1.0, 0.5 * (1 + model.diagonal / rows));
  double us = flops / (backward ? model.backward : model.forward) * (1 + model.short_rows / rows);
  us *= Idle(*a, backward, kernel == AttentionKernel::kEfficient, model, models.multiprocessors);
  if (a->dropout) us *= backward ? model.dropout_backward : model.dropout_forward;
  return {.us = model.start + us, .kernels = backward ? 3.0 : 1.0};
}

}  // namespace plimsoll
