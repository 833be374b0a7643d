#include "job/parallel/cut.h"

#include <algorithm>
#include <vector>

#include "job/transforms/job_editor.h"

namespace plimsoll {
namespace {

/// Results of so many layers may lie in one tensor, as a dimension of it.
constexpr std::int64_t kMostJoint = 3;

bool HasParts(const Number& size, std::int64_t parts) {
  return size.all([&](std::int64_t n) { return n % parts == 0; });
}

Number PartOfSize(const Number& n, std::int64_t parts) {
  return Number::Each([&](std::int64_t a) { return a / parts + (a % parts > 0 ? 1 : 0); }, n);
}

}  // namespace

std::optional<std::size_t> DividedDimension(const LayoutRecord& layout, const Cut& cut,
                                            std::int64_t parts) {
  std::vector<std::size_t> inside;
  for (std::size_t d = 0; d < layout.sizes.size(); ++d) {
    const bool is_inside = layout.strides[d].least() > 0 &&
                           layout.strides[d].least() < cut.top.least() &&
                           layout.sizes[d].least() > 1;
    if (is_inside) inside.push_back(d);
  }
  std::ranges::stable_sort(inside, std::ranges::greater(),
                           [&](std::size_t d) { return layout.strides[d].least(); });
  // Query, key and value of one projection: each is divided.
  const bool joint = inside.size() > 1 && layout.sizes[inside[0]].least() <= kMostJoint &&
                     !HasParts(layout.sizes[inside[0]], parts) &&
                     HasParts(layout.sizes[inside[1]], parts);
  if (inside.empty()) return std::nullopt;
  return inside[joint ? 1 : 0];
}

Cut CutOf(const LayoutRecord& layout, std::size_t dimension) {
  return {Number::Each(BoundedProduct, layout.sizes[dimension], layout.strides[dimension])};
}

LayoutRecord PartOf(const LayoutRecord& layout, std::size_t dimension, std::int64_t parts) {
  LayoutRecord part = layout;
  part.sizes[dimension] = PartOfSize(layout.sizes[dimension], parts);
  const Number& inner = layout.strides[dimension];
  const Number whole = Number::Each(BoundedProduct, layout.sizes[dimension], inner);
  const Number own = Number::Each(BoundedProduct, part.sizes[dimension], inner);
  for (std::size_t d = 0; d < layout.strides.size(); ++d) {
    if (d == dimension || layout.strides[d].least() <= inner.least()) continue;
    part.strides[d] = Number::Each(
        [&](std::int64_t stride, std::int64_t all, std::int64_t mine) {
          if (all > 0 && stride % all == 0) return stride / all * mine;
          return stride / parts + (stride % parts > 0 ? 1 : 0);
        },
        layout.strides[d], whole, own);
  }
  return part;
}

Number BytesAtPoints(const LayoutRecord& layout) {
  Number bytes = Number::Always(ElementSize(layout.dtype));
  for (const Number& size : layout.sizes) bytes = Number::Each(BoundedProduct, bytes, size);
  return bytes;
}

}  // namespace plimsoll
