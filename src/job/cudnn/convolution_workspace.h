// The temporary memory of one convolution call: cuDNN's workspace, guessed from the shape alone.
//
// From 18,083 shapes measured in three directions on an H200 (cuDNN 9.19, torch 2.11, TF32 allowed,
// benchmark off). A call has one temporary or none, and the same shape always has the same one.
// What it holds is understood to the byte; which engine cuDNN picks, and into how many parts it
// splits a weight gradient, is a trained choice inside cuDNN, of which only the broad lines can be
// read off. So there are two figures: the likely one, and one that is rarely exceeded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "job/calls/call.h"
#include "job/calls/workspace.h"

namespace plimsoll {

enum class ConvDirection { kForward, kBackwardData, kBackwardWeight };

/// Of a 3-D convolution what is folded in its shape: by depth, height and width.
struct ConvVolume {
  using Sizes = std::array<std::int64_t, 3>;
  Sizes input{}, kernel{}, stride{}, padding{}, dilation{};
};

/// One call as PyTorch sees it. 1-D: h = kh = 1. All measured shapes are square; others are treated
/// by their areas and their longer side, which is a guess.
struct ConvShape {
  int element_bytes = 4;                    // 4 (fp32 with TF32), 2 (fp16 or bf16)
  bool is_fp16 = false;                     // fp16 has some depthwise kernels that bf16 has not
  bool channels_last = false;               // NHWC
  std::int64_t n = 1, c = 1, h = 1, w = 1;  // input
  std::int64_t k = 1, ho = 1, wo = 1;       // output
  std::int64_t kh = 1, kw = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_h = 0, pad_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;
  bool transposed = false;
  /// A 3-D convolution with its depth folded in: h = D·H, ho = Do·Ho, kh = kD·kH, the largest
  /// stride and dilation. None was measured, so the upper figure is doubled.
  std::optional<ConvVolume> volume = {};
};

/// The upper figure held in 99 % of the measured calls of every class and is never less than the
/// likely one. `multiprocessors` is that of the GPU (132 on an H200): partial sums are one tile per
/// thread block. A shape that makes no sense (a size below 1, groups that do not divide) has no
/// workspace.
Workspace ConvolutionWorkspace(const ConvShape& shape, ConvDirection direction,
                               int multiprocessors);

/// A convolution, forward or backward, as its call says it.
struct ConvolutionCall {
  ConvShape shape;
  DType dtype = DType::kFloat32;
  bool backward = false;
  /// Of a backward: which gradients are asked for.
  bool wants_input = false;
  bool wants_weight = false;
  bool wants_bias = false;
};
/// Nothing for another operator, or where the arguments make no sense.
std::optional<ConvolutionCall> ReadConvolution(const Call& call);

}  // namespace plimsoll
