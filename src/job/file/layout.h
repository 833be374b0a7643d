// What a tensor looks like in memory, at one batch size.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

enum class DType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kFloat8,
  kComplex64,
  kComplex128,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
};

/// torch's name without the prefix: "bfloat16". Nothing for a name that is not known.
std::optional<DType> ParseDType(std::string_view name);
Bytes ElementSize(DType dtype);
/// Floating point in 16 bits.
inline bool IsHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

/// Counts end here: no device has so much, and sums of such counts do not overflow.
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 52;

struct Layout {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  std::size_t dims() const { return sizes.size(); }
  std::int64_t Numel() const;
  /// Of the elements alone.
  Bytes bytes() const { return Numel() * ElementSize(dtype); }
  /// As torch defines it: strides of dimensions of size 1 do not count.
  bool IsContiguous() const;
  /// Four dimensions in the order N, H, W, C; false for what is contiguous as well.
  bool IsChannelsLast() const;
  bool IsContiguousIn(std::initializer_list<int> order) const;
};

}  // namespace plimsoll
