#include "job/time/time_model.h"

#include <algorithm>

#include "job/time/h200_times.h"

namespace plimsoll {
namespace {

void OfProduct(std::string_view group, std::string_view prefix, Scaling rate, ProductModel& m,
               const EachConstant& each) {
  const auto name = [&](std::string_view field) {
    return std::string(prefix) + std::string(field);
  };
  each(group, name("rate"), rate, m.rate);
  each(group, name("tile"), Scaling::kNone, m.tile);
  each(group, name("rounding"), Scaling::kNone, m.rounding);
  each(group, name("fill"), Scaling::kNone, m.fill);
  each(group, name("start"), Scaling::kNone, m.start);
}

void OfMatrixProduct(std::string_view group, Scaling rate, ProductModel& m,
                     const EachConstant& each) {
  OfProduct(group, "", rate, m, each);
  each(group, "at_2_bytes", Scaling::kNone, m.at_2_bytes);
  each(group, "at_8_bytes", Scaling::kNone, m.at_8_bytes);
}

void OfConvolution(std::string_view group, Scaling rate, ConvolutionModel& m,
                   const EachConstant& each) {
  OfProduct(group, "forward_", rate, m.forward, each);
  OfProduct(group, "input_", rate, m.input, each);
  OfProduct(group, "weight_", rate, m.weight, each);
  each(group, "pass_forward", Scaling::kNone, m.pass_forward);
  each(group, "pass_backward", Scaling::kNone, m.pass_backward);
  each(group, "direct", Scaling::kNone, m.direct);
  each(group, "first_rate", Scaling::kFp32Rate, m.first_rate);
  each(group, "first_output", Scaling::kPerByte, m.first_output);
  each(group, "first_gradient_rate", Scaling::kFp32Rate, m.first_gradient_rate);
  each(group, "first_gradient_output", Scaling::kPerByte, m.first_gradient_output);
  each(group, "padded", Scaling::kNone, m.padded);
  each(group, "dilated_forward", Scaling::kNone, m.dilated_forward);
  each(group, "dilated_input", Scaling::kNone, m.dilated_input);
  each(group, "dilated_weight", Scaling::kNone, m.dilated_weight);
  each(group, "dilated_far", Scaling::kNone, m.dilated_far);
  each(group, "dilated_large", Scaling::kNone, m.dilated_large);
  each(group, "dilated_narrow", Scaling::kNone, m.dilated_narrow);
  each(group, "dilated_input_slow", Scaling::kNone, m.dilated_input_slow);
}

void OfGrouped(std::string_view group, Scaling rate, bool channels_last, GroupedModel& m,
               const EachConstant& each) {
  const auto direction = [&](const std::string& prefix, GroupedDirection& d) {
    OfProduct(group, prefix + "direct_", rate, d.direct, each);
    if (!channels_last) each(group, prefix + "direct_pass", Scaling::kNone, d.direct_pass);
    OfProduct(group, prefix + "together_", rate, d.together, each);
    each(group, prefix + "together_element", Scaling::kPerByte, d.together_element);
    OfProduct(group, prefix + "apart_", rate, d.apart, each);
    each(group, prefix + "apart_element", Scaling::kPerByte, d.apart_element);
  };
  direction("forward_", m.forward);
  direction("input_", m.input);
  direction("weight_", m.weight);
}

void OfDepthwise(std::string_view group, bool channels_last, DepthwiseModel& m,
                 const EachConstant& each) {
  const auto direction = [&](std::string_view prefix, DepthwiseDirection& d) {
    const auto name = [&](std::string_view field) {
      return std::string(prefix) + std::string(field);
    };
    each(group, name("_3"), Scaling::kPerByte, d.of_3);
    each(group, name("_5"), Scaling::kPerByte, d.of_5);
    each(group, name("_49"), Scaling::kPerByte, d.of_49);
    if (!channels_last) return;
    each(group, name("_tap"), Scaling::kPerByte, d.general_tap);
    each(group, name("_strided"), Scaling::kNone, d.strided);
  };
  direction("output", m.output);
  direction("input_gradient", m.input_gradient);
  direction("weight_gradient", m.weight_gradient);
  if (channels_last) each(group, "few_images", Scaling::kNone, m.few_images);
  each(group, "start", Scaling::kNone, m.start);
}

void OfAttention(std::string_view group, Scaling rate, AttentionModel& m,
                 const EachConstant& each) {
  each(group, "forward", rate, m.forward);
  each(group, "backward", rate, m.backward);
  each(group, "extra_forward", Scaling::kNone, m.extra_forward);
  each(group, "extra_backward", Scaling::kNone, m.extra_backward);
  each(group, "start", Scaling::kNone, m.start);
  each(group, "short_rows", Scaling::kNone, m.short_rows);
  each(group, "diagonal", Scaling::kNone, m.diagonal);
  each(group, "dropout_forward", Scaling::kNone, m.dropout_forward);
  each(group, "dropout_backward", Scaling::kNone, m.dropout_backward);
  each(group, "filled_forward", Scaling::kNone, m.filled_forward);
  each(group, "filled_backward", Scaling::kNone, m.filled_backward);
}

void OfMemory(MemoryModel& m, const EachConstant& each) {
  each("memory", "rate", Scaling::kBandwidth, m.rate);
  each("memory", "cached_rate", Scaling::kBandwidth, m.cached_rate);
  each("memory", "cached", Scaling::kNone, m.cached);
  each("memory", "start", Scaling::kNone, m.start);
  each("memory", "scalar", Scaling::kPerByte, m.scalar);
  each("memory", "reorder", Scaling::kPerByte, m.reorder);
  each("memory", "widen", Scaling::kPerByte, m.widen);
  each("memory", "rows", Scaling::kPerByte, m.rows);
  each("memory", "roll", Scaling::kPerByte, m.roll);
  each("memory", "random_number", Scaling::kPerByte, m.random_number);
}

void OfNormalization(NormalizationModel& m, const EachConstant& each) {
  each("normalization", "start", Scaling::kNone, m.start);
  each("normalization", "native_forward", Scaling::kPerByte, m.native_forward);
  each("normalization", "native_backward", Scaling::kPerByte, m.native_backward);
  each("normalization", "cudnn_forward", Scaling::kPerByte, m.cudnn_forward);
  each("normalization", "cudnn_backward", Scaling::kPerByte, m.cudnn_backward);
  each("normalization", "slots", Scaling::kNone, m.slots);
  each("normalization", "cold", Scaling::kNone, m.cold);
  each("normalization", "native_row", Scaling::kPerByte, m.native_row);
  each("normalization", "native_row_backward", Scaling::kPerByte, m.native_row_backward);
  each("normalization", "cudnn_row", Scaling::kPerByte, m.cudnn_row);
  each("normalization", "cudnn_row_backward", Scaling::kPerByte, m.cudnn_row_backward);
  each("normalization", "layer_start", Scaling::kNone, m.layer_start);
  each("normalization", "layer_forward", Scaling::kNone, m.layer_forward);
  each("normalization", "layer_backward", Scaling::kNone, m.layer_backward);
  each("normalization", "layer_row", Scaling::kPerByte, m.layer_row);
  each("normalization", "layer_row_backward", Scaling::kPerByte, m.layer_row_backward);
  each("normalization", "layer_many_rows_backward", Scaling::kPerByte, m.layer_many_rows_backward);
  each("normalization", "group_start", Scaling::kNone, m.group_start);
  each("normalization", "group_forward", Scaling::kNone, m.group_forward);
  each("normalization", "group_backward", Scaling::kNone, m.group_backward);
  each("normalization", "group_element", Scaling::kPerByte, m.group_element);
  each("normalization", "group_element_backward", Scaling::kPerByte, m.group_element_backward);
}

void OfChannelsLast(ChannelsLastModel& m, const EachConstant& each) {
  each("channels_last", "start", Scaling::kNone, m.start);
  each("channels_last", "cudnn_forward", Scaling::kPerByte, m.cudnn_forward);
  each("channels_last", "cudnn_backward", Scaling::kPerByte, m.cudnn_backward);
  each("channels_last", "cudnn_narrow", Scaling::kNone, m.cudnn_narrow);
  each("channels_last", "native_forward", Scaling::kPerByte, m.native_forward);
  each("channels_last", "native_backward", Scaling::kPerByte, m.native_backward);
  each("channels_last", "native_narrow", Scaling::kNone, m.native_narrow);
  each("channels_last", "interpolate", Scaling::kPerByte, m.interpolate);
  each("channels_last", "interpolate_collision", Scaling::kPerByte, m.interpolate_collision);
}

void OfReduction(ReductionModel& m, const EachConstant& each) {
  each("reduction", "start", Scaling::kNone, m.start);
  each("reduction", "row", Scaling::kNone, m.row);
  each("reduction", "softmax_rate", Scaling::kBandwidth, m.softmax_rate);
  each("reduction", "softmax_backward_rate", Scaling::kBandwidth, m.softmax_backward_rate);
  each("reduction", "softmax_short", Scaling::kPerByte, m.softmax_short);
  each("reduction", "softmax_short_backward", Scaling::kPerByte, m.softmax_short_backward);
  each("reduction", "softmax_across", Scaling::kPerByte, m.softmax_across);
  each("reduction", "softmax_across_backward", Scaling::kPerByte, m.softmax_across_backward);
  each("reduction", "loss", Scaling::kNone, m.loss);
  each("reduction", "loss_row", Scaling::kNone, m.loss_row);
  each("reduction", "loss_pixel", Scaling::kNone, m.loss_pixel);
}

void OfPools(PoolModel& m, const EachConstant& each) {
  each("pool", "start", Scaling::kNone, m.start);
  each("pool", "largest", Scaling::kPerByte, m.largest);
  each("pool", "largest_tap", Scaling::kPerByte, m.largest_tap);
  each("pool", "mean", Scaling::kPerByte, m.mean);
  each("pool", "mean_tap", Scaling::kPerByte, m.mean_tap);
  each("pool", "mean_backward", Scaling::kPerByte, m.mean_backward);
  each("pool", "mean_backward_tap", Scaling::kPerByte, m.mean_backward_tap);
  each("pool", "mean_backward_half", Scaling::kNone, m.mean_backward_half);
  each("pool", "largest_backward", Scaling::kPerByte, m.largest_backward);
  each("pool", "overlap", Scaling::kPerByte, m.overlap);
  each("pool", "largest_backward_half", Scaling::kPerByte, m.largest_backward_half);
  each("pool", "overlap_half", Scaling::kPerByte, m.overlap_half);
}

void OfInterpolation(InterpolationModel& m, const EachConstant& each) {
  each("interpolation", "start", Scaling::kNone, m.start);
  each("interpolation", "plane", Scaling::kNone, m.plane);
  each("interpolation", "result", Scaling::kPerByte, m.result);
  each("interpolation", "nearest", Scaling::kPerByte, m.nearest);
  each("interpolation", "gradient", Scaling::kPerByte, m.gradient);
  each("interpolation", "collision", Scaling::kPerByte, m.collision);
  each("interpolation", "gradient_half", Scaling::kPerByte, m.gradient_half);
  each("interpolation", "collision_half", Scaling::kPerByte, m.collision_half);
}

void OfOther(OtherModel& m, const EachConstant& each) {
  each("other", "max_pool", Scaling::kPerByte, m.max_pool);
  each("other", "max_pool_backward", Scaling::kPerByte, m.max_pool_backward);
  each("other", "mean_pool", Scaling::kPerByte, m.mean_pool);
  each("other", "mean_pool_backward", Scaling::kPerByte, m.mean_pool_backward);
  each("other", "sort", Scaling::kNone, m.sort);
  each("other", "embedding_rate", Scaling::kBandwidth, m.embedding_rate);
  each("other", "start", Scaling::kNone, m.start);
  each("optimizer", "foreach_pass", Scaling::kNone, m.foreach_pass);
  each("optimizer", "foreach_start", Scaling::kNone, m.foreach_start);
  each("optimizer", "foreach_tensors", Scaling::kNone, m.foreach_tensors);
  each("optimizer", "fused_pass", Scaling::kNone, m.fused_pass);
}

/// How much faster than the H200; of a rate that a card does not have, that of fp32.
struct Ratios {
  double half = 1, tf32 = 1, fp32 = 1, bandwidth = 1;
};

Ratios RatiosTo(const Gpu& gpu, const Gpu& h200) {
  Ratios r;
  r.fp32 = gpu.rates.fp32 / h200.rates.fp32;
  r.bandwidth = gpu.bandwidth / h200.bandwidth;
  r.half = (gpu.rates.bf16 ? *gpu.rates.bf16 : gpu.rates.fp16) / h200.rates.fp16;
  r.tf32 = (gpu.rates.tf32 ? *gpu.rates.tf32 : gpu.rates.fp32) / *h200.rates.tf32;
  return r;
}

void Scale(double& value, Scaling scaling, const Ratios& ratios) {
  switch (scaling) {
    case Scaling::kNone:
      return;
    case Scaling::kHalfRate:
      value *= ratios.half;
      return;
    case Scaling::kTf32Rate:
      value *= ratios.tf32;
      return;
    case Scaling::kFp32Rate:
      value *= ratios.fp32;
      return;
    case Scaling::kBandwidth:
      value *= ratios.bandwidth;
      return;
    case Scaling::kPerByte:
      value /= ratios.bandwidth;
      return;
  }
}

}  // namespace

void ForEachConstant(TimeModel& model, const EachConstant& each) {
  OfMemory(model.memory, each);
  OfMatrixProduct("product_half", Scaling::kHalfRate, model.half, each);
  OfMatrixProduct("product_tf32", Scaling::kTf32Rate, model.tf32, each);
  OfMatrixProduct("product_fp32", Scaling::kFp32Rate, model.fp32, each);
  OfMatrixProduct("batched_half", Scaling::kHalfRate, model.batched_half, each);
  OfMatrixProduct("batched_tf32", Scaling::kTf32Rate, model.batched_tf32, each);
  OfMatrixProduct("batched_fp32", Scaling::kFp32Rate, model.batched_fp32, each);
  OfConvolution("convolution_half", Scaling::kHalfRate, model.convolution_half, each);
  OfConvolution("convolution_tf32", Scaling::kTf32Rate, model.convolution_tf32, each);
  OfConvolution("volume_half", Scaling::kHalfRate, model.volume_half, each);
  OfConvolution("volume_tf32", Scaling::kTf32Rate, model.volume_tf32, each);
  OfGrouped("grouped_half", Scaling::kHalfRate, false, model.grouped_half, each);
  OfGrouped("grouped_tf32", Scaling::kTf32Rate, false, model.grouped_tf32, each);
  OfGrouped("grouped_last_half", Scaling::kHalfRate, true, model.grouped_last_half, each);
  OfGrouped("grouped_last_tf32", Scaling::kTf32Rate, true, model.grouped_last_tf32, each);
  OfDepthwise("depthwise", false, model.depthwise, each);
  OfDepthwise("depthwise_volume", false, model.depthwise_volume, each);
  OfDepthwise("depthwise_last_half", true, model.depthwise_last_half, each);
  OfDepthwise("depthwise_last_fp32", true, model.depthwise_last_fp32, each);
  OfAttention("attention_cudnn", Scaling::kHalfRate, model.cudnn_attention, each);
  OfAttention("attention_fp32", Scaling::kFp32Rate, model.efficient_fp32, each);
  OfAttention("attention_half", Scaling::kHalfRate, model.efficient_half, each);
  OfNormalization(model.normalization, each);
  OfChannelsLast(model.channels_last, each);
  OfReduction(model.reduction, each);
  OfPools(model.pool, each);
  OfInterpolation(model.interpolation, each);
  OfOther(model.other, each);
}

TimeModel TimeModelOf(const Gpu& gpu) {
  static const Gpu kH200 = *FindGpu("H200");
  const Ratios ratios = RatiosTo(gpu, kH200);
  TimeModel model;
  model.multiprocessors = std::max(1, gpu.multiprocessors);
  const std::span<const MeasuredConstant> measured = H200Times();
  ForEachConstant(model, [&](std::string_view group, std::string_view name, Scaling scaling,
                             double& value) {
    const auto found = std::find_if(measured.begin(), measured.end(), [&](const auto& constant) {
      return constant.group == group && constant.name == name;
    });
    if (found != measured.end()) value = found->value;
    Scale(value, scaling, ratios);
  });
  return model;
}

}  // namespace plimsoll
