// What kernels take on a GPU, as constants of simple physical rules: measured on an H200 and fitted
// by lab/fit_step_time, scaled by the data sheets for other cards.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "hardware/gpu.h"

namespace plimsoll {

/// A matrix product: tiles over the multiprocessors, in waves.
struct ProductModel {
  /// FLOP a microsecond of the whole device, with the largest tile.
  double rate = 0;
  /// How much slower smaller tiles are: an exponent of their area.
  double tile = 0.2;
  /// Of a wave that is not full, how much of the missing part is paid for.
  double rounding = 0.5;
  /// What each tile takes besides, counted as steps of the inner size.
  double fill = 100;
  /// Microseconds.
  double start = 3;
  /// How much slower where rows begin at odd multiples of 2, and of 4 or 8 bytes.
  double at_2_bytes = 1;
  double at_8_bytes = 1;
};

struct ConvolutionModel {
  ProductModel forward, input, weight;
  /// Times that tensors pass through memory where cuDNN changes their layout first, and where not.
  double pass_forward = 2, pass_backward = 2, direct = 1.2;
  /// The first layer, of up to four channels: FLOP a microsecond, picoseconds an output.
  double first_rate = 27e6, first_output = 1.6, first_gradient_rate = 40e6,
         first_gradient_output = 2.5;
  /// How much more passes through memory take where channels are no multiple of 16 bytes, so that
  /// copies are padded.
  double padded = 1;
  /// How much slower where it is dilated; besides, by over 8 pixels, with kernels larger than 3×3,
  /// with fewer than 128 channels.
  double dilated_forward = 1.2, dilated_input = 1.6, dilated_weight = 1;
  double dilated_far = 1.2, dilated_large = 1.2, dilated_narrow = 1.2;
  double dilated_input_slow = 10;
};

/// One direction of a convolution in groups of several channels.
struct GroupedDirection {
  /// One kernel for all of them; where they are not channels-last, after and before copies, which
  /// are so many passes through memory.
  ProductModel direct;
  double direct_pass = 2;
  /// All copied into another order, then one kernel: picoseconds an element of input and output.
  ProductModel together;
  double together_element = 8;
  /// Copied and computed group by group; what begins a kernel is of each.
  ProductModel apart;
  double apart_element = 4;
};

struct GroupedModel {
  GroupedDirection forward, input, weight;
};

/// Picoseconds for kernels of 3×3, of 5×5, and for the 49 taps of others.
struct DepthwiseDirection {
  double of_3 = 10, of_5 = 16, of_49 = 32;
  /// In channels-last alone: a tap of kernels that are dilated or larger than 7×7, and how much
  /// longer each pixel takes where the kernel steps by more than one.
  double general_tap = 1, strided = 1;
};

/// One channel a group: by the outputs, the inputs for their gradient.
struct DepthwiseModel {
  DepthwiseDirection output, input_gradient, weight_gradient;
  /// How much longer an output of up to four images takes, in channels-last: another kernel.
  double few_images = 1;
  double start = 3;
};

struct AttentionModel {
  /// FLOP a microsecond; what each score takes besides its products, counted as width of a head.
  double forward = 0, backward = 0;
  double extra_forward = 30, extra_backward = 30;
  double start = 10, short_rows = 100, diagonal = 300;
  double dropout_forward = 1.3, dropout_backward = 1.1;
  /// How many blocks of threads a multiprocessor wants: fewer leave some of them idle.
  double filled_forward = 1, filled_backward = 1;
};

struct MemoryModel {
  /// Bytes a microsecond; the first `cached` megabytes of a call at the faster rate.
  double rate = 4.2e6, cached_rate = 6e6, cached = 20;
  double start = 1.5;
  /// Picoseconds an element, where a kernel cannot go by whole vectors: what is read and written
  /// does not lie in the same steps, a copy changes the order, a copy to a wider type.
  double scalar = 2.6, reorder = 6, widen = 2.8;
  /// Likewise: a copy that changes the order of rows alone, and one dimension of a roll.
  double rows = 2.8, roll = 4.2;
  /// Picoseconds an element.
  double random_number = 3;
};

struct NormalizationModel {
  double start = 4;
  /// Nanoseconds an element of one channel, where there are few channels: statistics.
  double native_forward = 0.54, native_backward = 0.89, cudnn_forward = 0.2, cudnn_backward = 0.6;
  double slots = 445, cold = 0.8;
  /// Nanoseconds for each channel of each image: where those are short, their beginnings count.
  double native_row = 0.5, native_row_backward = 0.5, cudnn_row = 0.1, cudnn_row_backward = 0.1;
  double layer_start = 2, layer_forward = 1, layer_backward = 1.5;
  /// Nanoseconds a row; the backward of more than 65,536 rows is another kernel.
  double layer_row = 1.2, layer_row_backward = 3.5, layer_many_rows_backward = 0.8;
  /// Group norm: passes through memory, and nanoseconds an element of one group, which one block of
  /// threads sums up.
  double group_start = 5, group_forward = 1.5, group_backward = 2;
  double group_element = 0.2, group_element_backward = 0.1;
};

/// What stands between convolutions in channels-last, where channels lie beside each other and no
/// block of threads has one for itself. Fitted to 580 calls on an H200 (sweep_between_channels_last
/// of lab/python/timing_jobs.py).
struct ChannelsLastModel {
  double start = 7;
  /// Of batch norm, picoseconds an element; narrow tensors take (1 + narrow / channels) times that.
  double cudnn_forward = 3.56, cudnn_backward = 4.85, cudnn_narrow = 6.2;
  double native_forward = 4.17, native_backward = 3.57, native_narrow = 18;
  /// Picoseconds a result of an interpolation, and for each gradient that is added to one place.
  double interpolate = 9.1, interpolate_collision = 0.04;
};

struct ReductionModel {
  double start = 4;
  /// Nanoseconds for each row that is summed up into one.
  double row = 1;
  double softmax_rate = 2.4e6, softmax_backward_rate = 2.9e6;
  /// Picoseconds an element of rows of up to 1,024, a warp each; and across rows, where neighbours
  /// belong to different sums.
  double softmax_short = 3, softmax_short_backward = 3;
  double softmax_across = 5, softmax_across_backward = 5;
  double loss = 8, loss_row = 1, loss_pixel = 0.5;
};

/// Of three dimensions. A block of threads has 32×8 places of one plane, whether the plane has as
/// many or not: nanoseconds a block, and for each element of a window besides.
struct PoolModel {
  double start = 2;
  double largest = 2.4, largest_tap = 0.19;
  double mean = 2, mean_tap = 0.2;
  double mean_backward = 2, mean_backward_tap = 0.25, mean_backward_half = 1.7;
  /// Picoseconds a gradient, which is added to the place that it came from: where windows overlap
  /// several may go to the same, which half precision does by a slower way.
  double largest_backward = 12, overlap = 0.1;
  double largest_backward_half = 24, overlap_half = 2.9;
};

/// Of two dimensions, contiguous.
struct InterpolationModel {
  double start = 1.5;
  /// A thread has one place in all planes of all images, one after the other: microseconds a plane
  /// where there are too few threads to hide how long memory takes, picoseconds a result elsewhere.
  double plane = 0.38, result = 3.7;
  double nearest = 2.4;
  /// Picoseconds a gradient, and that times how many are added to the same place.
  double gradient = 6, collision = 0.55, gradient_half = 9, collision_half = 2.7;
};

struct OtherModel {
  /// Picoseconds an element of the input.
  double max_pool = 3.7, max_pool_backward = 10.6, mean_pool = 2, mean_pool_backward = 4;
  double sort = 40, embedding_rate = 0.4e6;
  double start = 3;
  /// Of optimizers that go through all tensors in one call: passes, microseconds a launch.
  double foreach_pass = 1.18, foreach_start = 7, foreach_tensors = 100;
  double fused_pass = 1.1;
  /// Between pinned memory and the device: microseconds a copy, and how much of the data sheet's
  /// rate comes of it.
  double host_copy_start = 10, host_copy_share = 0.85;
};

struct TimeModel {
  ProductModel half, tf32, fp32;
  /// Many small ones in a call: other kernels, which mind rows that are not aligned less.
  ProductModel batched_half, batched_tf32, batched_fp32;
  ConvolutionModel convolution_half, convolution_tf32;
  /// Of three dimensions.
  ConvolutionModel volume_half, volume_tf32;
  GroupedModel grouped_half, grouped_tf32, grouped_last_half, grouped_last_tf32;
  DepthwiseModel depthwise, depthwise_last_half, depthwise_last_fp32, depthwise_volume;
  /// cuDNN in 16 bit, the efficient kernel in fp32 and in 16 bit, flash.
  AttentionModel cudnn_attention, efficient_fp32, efficient_half;
  MemoryModel memory;
  NormalizationModel normalization;
  ChannelsLastModel channels_last;
  ReductionModel reduction;
  PoolModel pool;
  InterpolationModel interpolation;
  OtherModel other;
  int multiprocessors = 132;
};

/// What a constant stands for, which is how it changes from card to card.
enum class Scaling : std::uint8_t { kNone, kHalfRate, kTf32Rate, kFp32Rate, kBandwidth, kPerByte };

/// Calls back with each constant: the group that is fitted together, its name, itself.
using EachConstant =
    std::function<void(std::string_view group, std::string_view name, Scaling scaling, double&)>;
void ForEachConstant(TimeModel& model, const EachConstant& each);

/// Measured on an H200; for another card scaled by its rates and its bandwidth.
TimeModel TimeModelOf(const Gpu& gpu);

}  // namespace plimsoll
