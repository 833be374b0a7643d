#include "job/file/layout.h"

#include <array>
#include <utility>

namespace plimsoll {
namespace {

struct Known {
  std::string_view name;
  DType dtype;
};
constexpr std::array<Known, 17> kKnown = {{{"float32", DType::kFloat32},
                                           {"float64", DType::kFloat64},
                                           {"float16", DType::kFloat16},
                                           {"bfloat16", DType::kBFloat16},
                                           {"float8_e4m3fn", DType::kFloat8},
                                           {"float8_e5m2", DType::kFloat8},
                                           {"float8_e4m3fnuz", DType::kFloat8},
                                           {"float8_e5m2fnuz", DType::kFloat8},
                                           {"complex64", DType::kComplex64},
                                           {"complex128", DType::kComplex128},
                                           {"int64", DType::kInt64},
                                           {"int32", DType::kInt32},
                                           {"int16", DType::kInt16},
                                           {"int8", DType::kInt8},
                                           {"uint8", DType::kUInt8},
                                           {"bool", DType::kBool},
                                           {"uint32", DType::kInt32}}};

}  // namespace

std::optional<DType> ParseDType(std::string_view name) {
  for (const Known& known : kKnown) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

Bytes ElementSize(DType dtype) {
  switch (dtype) {
    case DType::kComplex128:
      return 16;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kComplex64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return 2;
    case DType::kFloat8:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 1;
}

std::int64_t Layout::Numel() const {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(n, size, &n) || n > kMostElements) return kMostElements;
  }
  return n;
}

bool Layout::IsContiguous() const {
  std::int64_t expected = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

bool Layout::IsContiguousIn(std::initializer_list<int> order) const {
  std::int64_t expected = 1;
  for (auto d = std::rbegin(order); d != std::rend(order); ++d) {
    const auto dim = static_cast<std::size_t>(*d);
    if (sizes[dim] == 1) continue;
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

bool Layout::IsChannelsLast() const {
  return sizes.size() == 4 && !IsContiguous() && IsContiguousIn({0, 2, 3, 1});
}

}  // namespace plimsoll
