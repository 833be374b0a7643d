// A frozen weight in 8 bits, a scale for each output channel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll::train {

/// How a convolution over two dimensions goes over its input.
struct ConvolutionGeometry {
  std::vector<std::int64_t> stride = {1, 1};
  std::vector<std::int64_t> padding = {0, 0};
  std::vector<std::int64_t> dilation = {1, 1};
  std::int64_t groups = 1;
};

/// A linear layer, or a convolution.
using Geometry = std::optional<ConvolutionGeometry>;

at::Tensor ApplyWeight(const Geometry& geometry, const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias);

/// weight[channel] is values[channel] * scales[channel], but for rounding: at most half a scale.
struct Int8Weight {
  /// From -127 to 127, of the weight's shape.
  at::Tensor values;
  /// fp32, one for each output channel (dimension 0): its largest magnitude / 127.
  at::Tensor scales;

  /// Why the weight cannot be put into 8 bits; a sentence without its subject. Nothing if it can.
  static std::optional<std::string> Cannot(const at::Tensor& weight);
  /// Throws c10::Error if it cannot.
  static Int8Weight Of(const at::Tensor& weight);
  at::Tensor Dequantized(at::ScalarType type) const;
};

/// ApplyWeight with the dequantised weight, which is made for the product and made again in
/// backward; between the two nothing is kept, neither it nor `x`. The weight gets no gradient, `x`
/// and `bias` do. Under autocast the product is made in its type.
at::Tensor ApplyInt8Weight(const Geometry& geometry, const at::Tensor& x, const Int8Weight& weight,
                           const std::optional<at::Tensor>& bias);

}  // namespace plimsoll::train
