#include "job/time/kernel_time.h"

#include <algorithm>

#include "job/time/convolution_time.h"
#include "job/time/depthwise_time.h"
#include "job/time/kernel_rules.h"
#include "job/time/traffic.h"

namespace plimsoll {
namespace {

using TimeRule = KernelTime (*)(const Call&, const TimeContext&);
struct Entry {
  std::string_view name;
  std::string_view group;
  TimeRule rule;
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
    {"native_group_norm", "normalization", GroupNormTime},
    {"native_group_norm_backward", "normalization", GroupNormTime},
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
    {"max_pool2d_with_indices", "other", MaxPool},
    {"max_pool2d_with_indices_backward", "other", MaxPoolBackward},
    {"max_pool3d_with_indices", "pool", VolumePool},
    {"max_pool3d_with_indices_backward", "pool", VolumePoolBackward},
    {"avg_pool3d", "pool", VolumePool},
    {"avg_pool3d_backward", "pool", VolumePoolBackward},
    {"avg_pool2d", "other", MeanPool},
    {"_adaptive_avg_pool2d", "other", MeanPool},
    {"avg_pool2d_backward", "other", MeanPoolBackward},
    {"_adaptive_avg_pool2d_backward", "other", MeanPoolBackward},
    {"upsample_bilinear2d", "interpolation", Interpolate},
    {"upsample_nearest2d", "interpolation", Interpolate},
    {"upsample_bilinear2d_backward", "interpolation", InterpolateBackward},
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
    {"_cudnn_rnn", "recurrent", Recurrent},
    {"_cudnn_rnn_backward", "recurrent", RecurrentBack},
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
    {"roll", "memory", RollTime},
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
      return ConvolutionTime(call, *read, context, refused);
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
