#include "train/parallel/ranks/mesh.h"

#include <c10/util/Exception.h>

#include <cstdint>

namespace plimsoll::train {

Mesh::Mesh(Ranks& ranks, const MeshSizes& sizes) {
  const std::array<int, 3> lengths{sizes.data, sizes.pipeline, sizes.tensor};
  std::int64_t product = 1;
  for (const int length : lengths) {
    TORCH_CHECK(length >= 1, "there cannot be ", length, " ranks along a dimension of a mesh.");
    product *= length;
  }
  TORCH_CHECK(product == ranks.size(), "a mesh of ", sizes.data, " (data) x ", sizes.pipeline,
              " (pipeline) x ", sizes.tensor, " (tensor) needs ", product, " ranks, and there ",
              ranks.size() == 1 ? "is " : "are ", ranks.size(), ".");
  int stride = 1;
  for (std::size_t i = lengths.size(); i-- > 0;) {
    const int place = ranks.rank() / stride % lengths[i];
    std::vector<int> members;
    for (int other = 0; other < lengths[i]; ++other) {
      members.push_back(ranks.members()[ranks.rank() + (other - place) * stride]);
    }
    along_[i] = ranks.Some(std::move(members));
    stride *= lengths[i];
  }
}

}  // namespace plimsoll::train
