#include "job/time/traffic.h"

#include <algorithm>

#include "job/time/product_time.h"

namespace plimsoll {
namespace {

/// Whether both go through memory in the same steps: then a kernel reads and writes whole vectors.
/// A single number goes with everything.
bool SameSteps(const Layout& a, const Layout& b) {
  if (a.Numel() <= 1) return true;
  if (a.sizes != b.sizes) return false;
  for (std::size_t d = 0; d < a.dims(); ++d) {
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

/// Whether elements that lie beside each other in one do in the other too, row by row.
bool SameRows(const Layout& a, const Layout& b) {
  if (a.sizes != b.sizes) return false;
  for (std::size_t d = 0; d < a.dims(); ++d) {
    if (a.sizes[d] > 1 && b.strides[d] == 1) return a.strides[d] == 1;
  }
  return true;
}

}  // namespace

Traffic TrafficOf(const Call& call) {
  Traffic traffic;
  const Layout* written = call.results() > 0 ? call.Result(0).layout : nullptr;
  const auto read = [&](const Tensor& t) {
    if (t.storage == kElsewhere) return;
    traffic.read += TouchedBytes(*t.layout);
    traffic.elements = std::max(traffic.elements, double(t.layout->Numel()));
    if (written != nullptr && !SameSteps(*t.layout, *written)) {
      traffic.permuted = true;
      traffic.transposed |= !SameRows(*t.layout, *written);
    }
  };
  for (std::size_t i = 0; i < call.args(); ++i) {
    if (const auto t = call.TensorArg(i)) read(*t);
    for (const Tensor& t : call.TensorsArg(i)) read(t);
  }
  for (std::size_t i = 0; i < call.results(); ++i) {
    const Tensor t = call.Result(i);
    if (t.storage == kElsewhere) continue;
    traffic.written += TouchedBytes(*t.layout);
    traffic.elements = std::max(traffic.elements, double(t.layout->Numel()));
  }
  return traffic;
}

double ElementsOf(const Call& call, std::size_t arg) {
  const auto t = call.TensorArg(arg);
  return t ? double((*t)->Numel()) : 0;
}

bool IsChannelsLast(const Layout& layout) {
  return layout.dims() == 4 && layout.sizes[1] > 1 && layout.strides[1] == 1;
}

}  // namespace plimsoll
