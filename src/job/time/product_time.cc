#include "job/time/product_time.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace plimsoll {
namespace {

struct Tile {
  double m, n;
};
constexpr std::array<Tile, 8> kTiles = {
    {{128, 256}, {256, 128}, {128, 128}, {64, 128}, {128, 64}, {64, 64}, {32, 128}, {128, 32}}};
constexpr double kLargest = 128.0 * 256.0;
/// Into how many parts the inner size is cut where there are few tiles.
constexpr std::array<double, 10> kSplits = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr double kLeastInner = 128;
/// What adding up the parts takes: a launch, and each part written and read again.
constexpr double kSumStart = 1.5;
constexpr double kSumBytesPerUs = 16e6;

}  // namespace

double MemoryTime(double bytes, const MemoryModel& memory) {
  const double hot = std::min(bytes, memory.cached * 1e6);
  return hot / memory.cached_rate + (bytes - hot) / memory.rate;
}

double TouchedBytes(const Layout& layout) {
  double bytes = double(ElementSize(layout.dtype));
  for (std::size_t d = 0; d < layout.dims(); ++d) {
    if (layout.strides[d] != 0) bytes *= double(layout.sizes[d]);
  }
  return bytes;
}

double ProductTime(const ProductShape& shape, const ProductModel& model, int multiprocessors) {
  const double rate = model.rate / multiprocessors;
  double best = 1e30;
  for (const Tile& tile : kTiles) {
    const double slower = std::pow(tile.m * tile.n / kLargest, model.tile);
    const double tiles =
        std::ceil(shape.m / tile.m) * std::ceil(shape.n / tile.n) * std::max(1.0, shape.batches);
    for (const double split : kSplits) {
      if (split > 1 && (shape.k / split < kLeastInner || tiles >= 2.0 * multiprocessors)) break;
      const double waves = tiles * split / multiprocessors;
      const double whole = std::ceil(waves);
      const double paid = waves + (whole - waves) * std::min(1.0, model.rounding);
      double us = paid * 2 * tile.m * tile.n * (shape.k / split + model.fill) / (rate * slower);
      if (split > 1) us += kSumStart + split * shape.m * shape.n * 8 / kSumBytesPerUs;
      best = std::min(best, us);
    }
  }
  return best;
}

}  // namespace plimsoll
