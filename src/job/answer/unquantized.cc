#include "job/answer/unquantized.h"

#include <algorithm>
#include <map>

#include "answer/holder.h"
#include "job/calls/call.h"

namespace plimsoll {
namespace {

/// Smaller ones (norms, biases, routers) are left whole on purpose.
constexpr std::int64_t kLargeEnough = 1 << 20;
/// Of the weights; below this nothing is said.
constexpr double kMuchIsWhole = 0.1;
/// bitsandbytes keeps a scale for each 64 weights in 4 bits, in 8 bits again with a scale for 256
/// of those; one for each row in 8 bits.
constexpr double kBytesIn4Bits = 0.5 + 1.0 / 64, kBytesIn8Bits = 1.0;

enum class Kept : std::uint8_t { kOther, kWhole, kIn4Bits, kIn8Bits };

bool IsWhole(DType dtype) { return dtype == DType::kFloat32 || IsHalf(dtype); }

/// Weights in 4 bits are two in a byte, in one column.
Kept HowKept(const ModelTensor& tensor, const Layout& layout) {
  if (tensor.buffer || tensor.trainable || layout.Numel() < kLargeEnough / 2) return Kept::kOther;
  if (layout.dtype == DType::kUInt8 && layout.dims() == 2 && layout.sizes[1] == 1) {
    return Kept::kIn4Bits;
  }
  if (layout.dtype == DType::kInt8 && layout.dims() == 2) return Kept::kIn8Bits;
  const bool matrix = layout.dims() >= 2 && layout.Numel() >= kLargeEnough;
  return IsWhole(layout.dtype) && matrix ? Kept::kWhole : Kept::kOther;
}

/// Words that are looked up, and the layer that scores them, are left whole on purpose.
bool IsOfWords(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  return has("embed") || has("wte") || has("wpe") || has("lm_head");
}

}  // namespace

Bytes Unquantized::bytes() const {
  Bytes sum = 0;
  for (const WholeWeights& one : whole) sum += one.bytes;
  return sum;
}

Bytes Unquantized::saves() const {
  Bytes sum = 0;
  for (const WholeWeights& one : whole) sum += one.saves;
  return sum;
}

std::optional<Unquantized> FindUnquantized(const Setting& setting) {
  const Variant& variant = setting.variant();
  const AtBatch at(*setting.job, setting.batch);
  Unquantized found;
  double quantized = 0, whole = 0;
  bool in_8_bits = false;
  struct Group {
    WholeWeights told;
    double elements = 0;
  };
  std::map<std::string, Group> groups;
  for (const ModelTensor& tensor : variant.model_tensors) {
    const Layout& layout = at.layout(tensor.layout);
    const std::string_view name = setting.job->strings[tensor.name];
    switch (HowKept(tensor, layout)) {
      case Kept::kIn4Bits:
        quantized += 2 * double(layout.Numel());
        found.quantized += layout.bytes();
        break;
      case Kept::kIn8Bits:
        in_8_bits = true;
        quantized += double(layout.Numel());
        found.quantized += layout.bytes();
        break;
      case Kept::kWhole: {
        if (IsOfWords(name)) break;
        whole += double(layout.Numel());
        Group& group = groups[FoldedLayers(name)];
        ++group.told.count;
        group.told.bytes += layout.bytes();
        group.elements += double(layout.Numel());
        break;
      }
      case Kept::kOther:
        break;
    }
  }
  if (quantized == 0) return std::nullopt;
  found.bits = in_8_bits ? 8 : 4;
  found.share = whole / (whole + quantized);
  if (found.share < kMuchIsWhole) return std::nullopt;
  const double each = in_8_bits ? kBytesIn8Bits : kBytesIn4Bits;
  for (auto& [name, group] : groups) {
    group.told.name = name;
    const auto quantized_bytes = static_cast<Bytes>(each * group.elements);
    group.told.saves = std::max<Bytes>(0, group.told.bytes - quantized_bytes);
    found.whole.push_back(std::move(group.told));
  }
  std::ranges::stable_sort(found.whole, std::ranges::greater{}, &WholeWeights::bytes);
  return found;
}

}  // namespace plimsoll
