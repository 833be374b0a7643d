// How a tensor is divided among ranks, said of its storage: captures tell no views, but every use
// of a storage has sizes and strides, and what is divided is the same in all of them.
#pragma once

#include <cstdint>
#include <optional>

#include "job/file/job.h"

namespace plimsoll {

/// Of every `top` elements of the storage that lie one after the other, a rank has the first share:
/// a matrix of 512 columns that is divided by columns has the top 512, divided by rows all of its
/// elements.
struct Cut {
  Number top;

  bool operator==(const Cut&) const = default;
};

/// The dimension of this view that is divided: the outermost inside of `top`, or the next where
/// that one only tells query, key and value of a joint projection apart. Nothing where the view has
/// none.
std::optional<std::size_t> DividedDimension(const LayoutRecord& layout, const Cut& cut,
                                            std::int64_t parts);
/// The cut that divides this dimension of a tensor that is alone in its storage.
Cut CutOf(const LayoutRecord& layout, std::size_t dimension);
/// The first rank's part, where this dimension is divided.
LayoutRecord PartOf(const LayoutRecord& layout, std::size_t dimension, std::int64_t parts);

/// Of the elements, at every point.
Number BytesAtPoints(const LayoutRecord& layout);

}  // namespace plimsoll
