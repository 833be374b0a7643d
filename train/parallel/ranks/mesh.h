// Ranks as a grid: which of them share what, where a model is trained in several ways at once.
#pragma once

#include <array>
#include <memory>

#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

enum class Dimension {
  /// Ranks along it have the same part of the model, and different rows.
  kData,
  /// Different blocks.
  kPipeline,
  /// Different parts of the same layers.
  kTensor,
};

/// How many ranks there are along each dimension.
struct MeshSizes {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
};

/// Neighbouring ranks, which have the fastest links, are along kTensor, then kPipeline, then kData.
class Mesh {
 public:
  /// An error unless the sizes, multiplied, are the number of ranks. The ranks must outlive it.
  Mesh(Ranks& ranks, const MeshSizes& sizes);

  /// Those that differ from this one in this dimension alone, with this one, in their order. A
  /// group of its own, that is made when it is first used.
  Ranks& along(Dimension dimension) { return *along_[Index(dimension)]; }
  /// This rank's place along it.
  int coordinate(Dimension dimension) const { return along_[Index(dimension)]->rank(); }
  int size(Dimension dimension) const { return along_[Index(dimension)]->size(); }

 private:
  static std::size_t Index(Dimension dimension) { return static_cast<std::size_t>(dimension); }

  std::array<std::unique_ptr<Ranks>, 3> along_;
};

}  // namespace plimsoll::train
