#include "step/time/kernel_time.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "step/rules/attention.h"
#include "step/time/convolution_time.h"
#include "step/time/product_time.h"

namespace plimsoll {
namespace {

std::string_view BaseName(std::string_view op) {
  const std::size_t first = op.find('.');
  if (first != std::string_view::npos) op.remove_prefix(first + 1);
  return op.substr(0, op.find('.'));
}

/// What a call reads and writes, and the numbers that most rules want.
struct Traffic {
  double read = 0;
  double written = 0;
  /// Of the largest tensor.
  double elements = 0;
  bool permuted = false;

  double bytes() const { return read + written; }
};

/// Whether both go through memory in the same steps: then a kernel reads and writes whole vectors.
/// A single number goes with everything.
bool SameSteps(const Layout& a, const Layout& b) {
  if (a.Numel() <= 1) return true;
  if (a.sizes != b.sizes) return false;
  for (std::size_t d = 0; d < a.dims(); ++d) {
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

Traffic TrafficOf(const Call& call) {
  Traffic traffic;
  const Layout* written = call.results() > 0 ? call.Result(0).layout : nullptr;
  const auto read = [&](const Tensor& t) {
    if (t.storage == kElsewhere) return;
    traffic.read += TouchedBytes(*t.layout);
    traffic.elements = std::max(traffic.elements, double(t.layout->Numel()));
    if (written != nullptr && !SameSteps(*t.layout, *written)) traffic.permuted = true;
  };
  for (std::size_t i = 0; i < call.args(); ++i) {
    if (const auto t = call.TensorArg(i)) read(*t);
    for (const Tensor& t : call.TensorsArg(i)) read(t);
  }
  for (std::size_t i = 0; i < call.results(); ++i) {
    const Tensor t = call.Result(i);
    if (t.storage == kElsewhere) continue;
    traffic.written += TouchedBytes(*t.layout);
    traffic.elements = std::max(traffic.elements, double(t.layout->Numel()));
  }
  return traffic;
}

double ElementsOf(const Call& call, std::size_t arg) {
  const auto t = call.TensorArg(arg);
  return t ? double((*t)->Numel()) : 0;
}

// --- Memory ---

double AtLeast(double bytes, double elements, double ps, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  return memory.start + std::max(MemoryTime(bytes, memory), elements * ps * 1e-6);
}

KernelTime Pointwise(const Call& call, const TimeContext& context) {
  const Traffic traffic = TrafficOf(call);
  const double ps = traffic.permuted ? context.model.memory.scalar : 0;
  return {.us = AtLeast(traffic.bytes(), traffic.elements, ps, context), .kernels = 1};
}

KernelTime Concatenate(const Call& call, const TimeContext& context) {
  return {.us = AtLeast(TrafficOf(call).bytes(), 0, 0, context), .kernels = 1};
}

/// To another type or into another order.
KernelTime Copy(const Call& call, const TimeContext& context) {
  const auto from = call.TensorArg(0);
  if (!from || call.results() == 0) return Pointwise(call, context);
  const MemoryModel& memory = context.model.memory;
  const Traffic traffic = TrafficOf(call);
  const bool widens = ElementSize((*from)->dtype) < ElementSize(call.Result(0)->dtype);
  const double ps = traffic.permuted ? memory.reorder : widens ? memory.widen : 0;
  return {.us = AtLeast(traffic.bytes(), traffic.elements, ps, context), .kernels = 1};
}

/// Writes what does not depend on what it is like.
KernelTime Fill(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  return {.us = memory.start + MemoryTime(TrafficOf(call).written, memory), .kernels = 1};
}

/// A gradient of a view: zeros, and a copy into a part of them.
KernelTime FillAndCopy(const Call& call, const TimeContext& context) {
  KernelTime time = Fill(call, context);
  const MemoryModel& memory = context.model.memory;
  time += {.us = memory.start + MemoryTime(2 * TrafficOf(call).read, memory), .kernels = 1};
  return time;
}

KernelTime Random(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  const Traffic traffic = TrafficOf(call);
  return {.us = memory.start + std::max(MemoryTime(traffic.bytes(), memory),
                                        traffic.elements * memory.random_number * 1e-6),
          .kernels = 1};
}

// --- Products ---

/// By how many bytes, up to 16, every row of the matrix begins aligned.
double AlignmentOf(const Layout& layout) {
  const std::size_t n = layout.dims();
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
  const ProductModel& model = IsHalf(x.dtype)       ? models.half
                              : context.matmul_tf32 ? models.tf32
                                                    : models.fp32;
  double us = ProductTime(shape, model, models.multiprocessors);
  double aligned = std::min(AlignmentOf(x), AlignmentOf(y));
  if (call.results() > 0) aligned = std::min(aligned, AlignmentOf(*call.Result(0)));
  if (aligned <= 2) {
    us *= model.at_2_bytes;
  } else if (aligned <= 8) {
    us *= model.at_8_bytes;
  }
  const double moved = MemoryTime(TrafficOf(call).bytes(), models.memory);
  return {.us = model.start + std::max(us, moved), .kernels = 1};
}

KernelTime PlainProduct(const Call& call, const TimeContext& context) {
  return Product(call, context, 0);
}
KernelTime AddedProduct(const Call& call, const TimeContext& context) {
  return Product(call, context, 1);
}

// --- Attention ---

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

/// Kernels are built for heads of these widths.
double PaddedHead(double d) { return d <= 32 ? 32 : d <= 64 ? 64 : std::ceil(d / 128) * 128; }

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
  const double rows = double(a->s);
  const double width = PaddedHead(double(a->d)) + PaddedHead(double(a->dv)) +
                       2 * (backward ? model.extra_backward : model.extra_forward);
  double flops =
      2.0 * double(a->b) * double(a->h) * rows * double(a->sk) * width * (backward ? 2.5 : 1);
  if (a->causal) flops *= std::min(1.0, 0.5 * (1 + model.diagonal / rows));
  double us = flops / (backward ? model.backward : model.forward) * (1 + model.short_rows / rows);
  if (a->dropout) us *= backward ? model.dropout_backward : model.dropout_forward;
  return {.us = model.start + us, .kernels = backward ? 3.0 : 1.0};
}

// --- Normalization, reductions, losses ---

bool IsChannelsLast(const Layout& layout) {
  return layout.dims() == 4 && layout.sizes[1] > 1 && layout.strides[1] == 1;
}

KernelTime ChannelsLastBatchNorm(const Layout& input, bool native, bool backward,
                                 const ChannelsLastModel& model) {
  const double ps = native ? (backward ? model.native_backward : model.native_forward)
                           : (backward ? model.cudnn_backward : model.cudnn_forward);
  const double narrow = native ? model.native_narrow : model.cudnn_narrow;
  return {
      .us = model.start + double(input.Numel()) * ps * 1e-6 * (1 + narrow / double(input.sizes[1])),
      .kernels = native ? 3.0 : 1.0};
}

KernelTime BatchNorm(const Call& call, const TimeContext& context) {
  const std::string_view name = BaseName(call.op());
  const bool backward = name.find("backward") != std::string_view::npos;
  const bool native = name.starts_with("native");
  // The gradient comes first in the native one, the input in cuDNN's: their shapes are the same.
  const auto input = call.TensorArg(0);
  if (!input || (*input)->dims() < 2) return Pointwise(call, context);
  if (IsChannelsLast(**input)) {
    return ChannelsLastBatchNorm(**input, native, backward, context.model.channels_last);
  }
  const NormalizationModel& model = context.model.normalization;
  const double elements = double((*input)->Numel());
  const double size = double(ElementSize((*input)->dtype));
  const double channels = double((*input)->sizes[1]);
  const double a = native ? (backward ? model.native_backward : model.native_forward)
                          : (backward ? model.cudnn_backward : model.cudnn_forward);
  const double cold = 1 + model.cold * std::min(1.0, elements * size * (backward ? 2 : 1) / 60e6);
  const double statistics = elements / std::min(channels, model.slots) * a * 1e-3 * cold;
  return {.us = (native ? 2 : 1) * model.start +
                MemoryTime((backward ? 5 : 3) * elements * size, context.model.memory) + statistics,
          .kernels = native ? 2.0 : 1.0};
}

constexpr double kManyRows = 65536;

KernelTime LayerNorm(const Call& call, const TimeContext& context) {
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const std::vector<std::int64_t> shape = call.IntsArg(backward ? 2 : 1);
  double width = 1;
  for (const std::int64_t n : shape) width *= double(std::max<std::int64_t>(n, 1));
  const NormalizationModel& model = context.model.normalization;
  const double elements = ElementsOf(call, backward ? 1 : 0);
  const double rows = elements / width;
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  if (!backward) {
    return {.us = model.layer_start + moved * model.layer_forward + rows * model.layer_row * 1e-3,
            .kernels = 1};
  }
  const double row = rows > kManyRows ? model.layer_many_rows_backward : model.layer_row_backward;
  return {.us = 2 * model.layer_start + moved * model.layer_backward + rows * row * 1e-3,
          .kernels = 2};
}

/// Sums over the outer dimensions go down columns, row by row.
KernelTime Sum(const Call& call, const TimeContext& context) {
  const ReductionModel& model = context.model.reduction;
  const auto input = call.TensorArg(0);
  if (!input || call.results() == 0) return Pointwise(call, context);
  const double from = double((*input)->Numel());
  const double to = std::max(1.0, double(call.Result(0)->Numel()));
  const std::vector<std::int64_t> dims = call.IntsArg(1);
  const bool columns = !dims.empty() && to > 1 && dims.front() == 0;
  const double rows = columns ? from / to : 0;
  return {.us = model.start + MemoryTime(TrafficOf(call).bytes(), context.model.memory) +
                rows * model.row * 1e-3,
          .kernels = 1};
}

KernelTime Softmax(const Call& call, const TimeContext& context) {
  const ReductionModel& model = context.model.reduction;
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  return {
      .us = context.model.memory.start +
            TrafficOf(call).bytes() / (backward ? model.softmax_backward_rate : model.softmax_rate),
      .kernels = 1};
}

KernelTime Loss(const Call& call, const TimeContext& context) {
  const ReductionModel& model = context.model.reduction;
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const auto input = call.TensorArg(backward ? 1 : 0);
  if (!input || (*input)->dims() < 1) return Pointwise(call, context);
  const Layout& x = **input;
  // One image after the other is summed up by one block: its pixels are the critical path.
  const double pixels = x.dims() == 4 ? double(x.sizes[2]) * double(x.sizes[3]) : 0;
  const double rows = x.dims() <= 2 ? double(x.sizes[0]) : 0;
  const double zeros = backward ? MemoryTime(TrafficOf(call).written, context.model.memory) : 0;
  const double share = backward ? 0.25 : 1;
  return {
      .us = model.loss + (rows * model.loss_row + pixels * model.loss_pixel) * 1e-3 * share + zeros,
      .kernels = backward ? 2.0 : 1.0};
}

// --- Pooling, interpolation, indices ---

template <double OtherModel::*kPerElement>
KernelTime PerInput(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const bool backward = BaseName(call.op()).find("backward") != std::string_view::npos;
  const double elements =
      backward && call.results() > 0 ? double(call.Result(0)->Numel()) : ElementsOf(call, 0);
  return {.us = model.start + std::max(elements * model.*kPerElement * 1e-6,
                                       MemoryTime(TrafficOf(call).bytes(), context.model.memory)),
          .kernels = 1};
}

KernelTime Interpolate(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  const auto input = call.TensorArg(0);
  if (input && IsChannelsLast(**input) && call.results() > 0) {
    const ChannelsLastModel& last = context.model.channels_last;
    return {.us = last.start + double(call.Result(0)->Numel()) * last.interpolate * 1e-6,
            .kernels = 1};
  }
  return {.us = model.start + std::max(moved, TrafficOf(call).elements * model.interpolate * 1e-6),
          .kernels = 1};
}

/// Many gradients are added to one place, one after the other.
KernelTime InterpolateBackward(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const double from = ElementsOf(call, 0);
  const double to = call.results() > 0 ? std::max(1.0, double(call.Result(0)->Numel())) : 1;
  const double moved = MemoryTime(TrafficOf(call).bytes(), context.model.memory);
  const auto gradient = call.TensorArg(0);
  const double collision = gradient && IsChannelsLast(**gradient)
                               ? context.model.channels_last.interpolate_collision
                               : model.interpolate_collision;
  return {.us = 2 * model.start +
                std::max(moved * model.interpolate_backward, from * from / to * collision * 1e-6),
          .kernels = 2};
}

KernelTime EmbeddingBackward(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const auto gradient = call.TensorArg(0);
  if (!gradient) return Pointwise(call, context);
  return {.us = model.sort + 2 * TouchedBytes(**gradient) / model.embedding_rate +
                MemoryTime(TrafficOf(call).written, context.model.memory),
          .kernels = 8};
}

KernelTime Gather(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  return {.us = memory.start + MemoryTime(2 * TrafficOf(call).written, memory), .kernels = 1};
}

/// scatter_(self, dim, index, src): of `self` only what is written is touched.
KernelTime Scatter(const Call& call, const TimeContext& context) {
  const MemoryModel& memory = context.model.memory;
  const auto index = call.TensorArg(2);
  if (!index) return Pointwise(call, context);
  return {.us = memory.start + MemoryTime(2 * TouchedBytes(**index), memory), .kernels = 1};
}

// --- Optimizers ---

KernelTime Foreach(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  Traffic traffic = TrafficOf(call);
  const std::vector<Tensor> first = call.TensorsArg(0);
  if (BaseName(call.op()).ends_with('_')) {
    for (const Tensor& t : first) traffic.written += TouchedBytes(*t.layout);
  }
  if (traffic.bytes() <= 0) return {};
  const double launches = std::max(1.0, std::ceil(double(first.size()) / model.foreach_tensors));
  return {.us = launches * model.foreach_start +
                model.foreach_pass * MemoryTime(traffic.bytes(), context.model.memory),
          .kernels = launches};
}

/// plimsoll.optimizer_step_(parameters, bytes for each element, whether one tensor at a time): a
/// part of another optimizer's step than the captured one.
KernelTime OptimizerStep(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  const std::vector<Tensor> parameters = call.TensorsArg(0);
  double elements = 0;
  for (const Tensor& t : parameters) elements += double(t.layout->Numel());
  const bool one_by_one = call.BoolArg(2, false);
  const double launches =
      one_by_one ? double(parameters.size())
                 : std::max(1.0, std::ceil(double(parameters.size()) / model.foreach_tensors));
  const double start = one_by_one ? context.model.memory.start : model.foreach_start;
  return {.us = launches * start + model.foreach_pass * MemoryTime(elements * call.FloatArg(1, 0),
                                                                   context.model.memory),
          .kernels = launches};
}

/// plimsoll.to_host_(tensors), plimsoll.to_device(tensors) and, into what is there, to_device_:
/// between pinned memory and the device, one after the other.
KernelTime HostCopy(const Call& call, const TimeContext& context) {
  double bytes = 0;
  const std::vector<Tensor> tensors = call.TensorsArg(0);
  for (const Tensor& t : tensors) bytes += TouchedBytes(*t.layout);
  return {.us = context.model.other.host_copy_start * double(tensors.size()) +
                1e6 * bytes / (context.model.other.host_copy_share * context.gpu.interconnect.host),
          .kernels = double(tensors.size())};
}

/// Reads parameters, gradients and both states; writes all but the gradients.
KernelTime Fused(const Call& call, const TimeContext& context) {
  const OtherModel& model = context.model.other;
  double bytes = 0;
  for (std::size_t i = 0; i < call.args(); ++i) {
    for (const Tensor& t : call.TensorsArg(i)) {
      if (t.storage != kElsewhere) bytes += TouchedBytes(*t.layout) * (i == 1 ? 1 : 2);
    }
  }
  const double launches =
      std::max(1.0, std::ceil(double(call.TensorsArg(0).size()) / model.foreach_tensors));
  return {.us = launches * model.foreach_start +
                model.fused_pass * MemoryTime(bytes, context.model.memory),
          .kernels = launches};
}

// --- Which rule ---

using Rule = KernelTime (*)(const Call&, const TimeContext&);
struct Entry {
  std::string_view name;
  std::string_view group;
  Rule rule;
};

constexpr Entry kRules[] = {
    {"mm", "product", PlainProduct},
    {"bmm", "product", PlainProduct},
    {"addmm", "product", AddedProduct},
    {"addmm_", "product", AddedProduct},
    {"baddbmm", "product", AddedProduct},
    {"attention", "attention", AttentionTime},
    {"attention_backward", "attention", AttentionTime},
    {"native_batch_norm", "normalization", BatchNorm},
    {"native_batch_norm_backward", "normalization", BatchNorm},
    {"cudnn_batch_norm", "normalization", BatchNorm},
    {"cudnn_batch_norm_backward", "normalization", BatchNorm},
    {"native_layer_norm", "normalization", LayerNorm},
    {"native_layer_norm_backward", "normalization", LayerNorm},
    {"sum", "reduction", Sum},
    {"mean", "reduction", Sum},
    {"_softmax", "reduction", Softmax},
    {"_softmax_backward_data", "reduction", Softmax},
    {"_log_softmax", "reduction", Softmax},
    {"_log_softmax_backward_data", "reduction", Softmax},
    {"nll_loss_forward", "reduction", Loss},
    {"nll_loss_backward", "reduction", Loss},
    {"nll_loss2d_forward", "reduction", Loss},
    {"nll_loss2d_backward", "reduction", Loss},
    {"max_pool2d_with_indices", "other", PerInput<&OtherModel::max_pool>},
    {"max_pool2d_with_indices_backward", "other", PerInput<&OtherModel::max_pool_backward>},
    {"avg_pool2d", "other", PerInput<&OtherModel::mean_pool>},
    {"_adaptive_avg_pool2d", "other", PerInput<&OtherModel::mean_pool>},
    {"avg_pool2d_backward", "other", PerInput<&OtherModel::mean_pool_backward>},
    {"_adaptive_avg_pool2d_backward", "other", PerInput<&OtherModel::mean_pool_backward>},
    {"upsample_bilinear2d", "other", Interpolate},
    {"upsample_nearest2d", "other", Interpolate},
    {"upsample_bilinear2d_backward", "other", InterpolateBackward},
    {"upsample_nearest2d_backward", "memory", Pointwise},
    {"embedding", "memory", Gather},
    {"index_select", "memory", Gather},
    {"gather", "memory", Gather},
    {"scatter_", "memory", Scatter},
    {"embedding_dense_backward", "other", EmbeddingBackward},
    {"slice_backward", "memory", FillAndCopy},
    {"select_backward", "memory", FillAndCopy},
    {"zeros", "memory", Fill},
    {"ones", "memory", Fill},
    {"full", "memory", Fill},
    {"zeros_like", "memory", Fill},
    {"ones_like", "memory", Fill},
    {"full_like", "memory", Fill},
    {"zero_", "memory", Fill},
    {"fill_", "memory", Fill},
    {"optimizer_step_", "optimizer", OptimizerStep},
    {"to_host_", "host", HostCopy},
    {"to_device", "host", HostCopy},
    {"to_device_", "host", HostCopy},
    {"randn", "memory", Random},
    {"rand", "memory", Random},
    {"randint", "memory", Random},
    {"normal_", "memory", Random},
    {"bernoulli_", "memory", Random},
    {"cat", "memory", Concatenate},
    {"_to_copy", "memory", Copy},
    {"copy_", "memory", Copy},
    {"clone", "memory", Copy},
};

constexpr std::string_view kNoKernel[] = {"empty",     "empty_like",        "empty_strided",
                                          "new_empty", "new_empty_strided", "host_step_"};

const Entry* FindRule(std::string_view name) {
  const auto* found = std::find_if(std::begin(kRules), std::end(kRules),
                                   [&](const Entry& e) { return e.name == name; });
  return found == std::end(kRules) ? nullptr : found;
}

bool Launches(const Call& call, std::string_view name) {
  if (std::find(std::begin(kNoKernel), std::end(kNoKernel), name) != std::end(kNoKernel)) {
    return false;
  }
  return call.fresh() > 0 || name.ends_with('_') || call.op().ends_with(".out");
}

}  // namespace

std::string_view TimeGroupOf(const Call& call) {
  const std::string_view name = BaseName(call.op());
  if (name.starts_with("convolution")) {
    const std::optional<ConvolutionCall> read = ReadConvolution(call);
    return !read ? "memory" : IsDepthwise(*read) ? "depthwise" : "convolution";
  }
  if (name.starts_with("_foreach") || name.starts_with("_fused")) return "optimizer";
  const Entry* entry = FindRule(name);
  return entry == nullptr ? "memory" : entry->group;
}

KernelTime TimeOf(const Call& call, const TimeContext& context, int refused) {
  const std::string_view name = BaseName(call.op());
  if (!Launches(call, name)) return {};
  if (name.starts_with("convolution")) {
    if (const std::optional<ConvolutionCall> read = ReadConvolution(call)) {
      return ConvolutionTime(*read, context, refused);
    }
  }
  if (name.starts_with("_foreach") || name.starts_with("_amp_foreach")) {
    return Foreach(call, context);
  }
  if (name.starts_with("_fused")) return Fused(call, context);
  if (TrafficOf(call).bytes() <= 0) return {};
  const Entry* entry = FindRule(name);
  return entry == nullptr ? Pointwise(call, context) : entry->rule(call, context);
}

}  // namespace plimsoll
