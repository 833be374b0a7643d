// Matrix products on tensor cores or without, and plain traffic with memory: what other kernels are
// put together from.
#pragma once

#include <cstdint>

#include "job/file/layout.h"
#include "job/time/time_model.h"

namespace plimsoll {

/// Microseconds that so many bytes take to be read and written.
double MemoryTime(double bytes, const MemoryModel& memory);

/// Bytes that are really touched: what is broadcast is read once.
double TouchedBytes(const Layout& layout);

struct ProductShape {
  double m = 1, n = 1, k = 1;
  double batches = 1;
};

/// Microseconds of the arithmetic alone.
double ProductTime(const ProductShape& shape, const ProductModel& model, int multiprocessors);

}  // namespace plimsoll
