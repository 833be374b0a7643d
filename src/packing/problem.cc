#include "packing/problem.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

/// Far below the largest Bytes: sums and differences of offsets stay safe without looking.
constexpr Bytes kMostBytes = Bytes{1} << 60;

}  // namespace

std::optional<Error> CheckProblem(const Problem& problem) {
  Bytes total = 0;
  for (std::size_t i = 0; i < problem.buffers.size(); ++i) {
    const Buffer& b = problem.buffers[i];
    if (b.lower >= b.upper) {
      return Error{
          .message = fmt::format("buffer {} is alive from {} to {}, which is no time at all", i,
                                 b.lower, b.upper),
          .hint = "a lifetime must end after it begins"};
    }
    if (b.size < 0 || b.alignment < 1) {
      return Error{
          .message = fmt::format("buffer {} has size {} and alignment {}", i, b.size, b.alignment),
          .hint = "a size is at least 0, an alignment at least 1"};
    }
    if (b.size > kMostBytes - total || b.alignment > kMostBytes - total - b.size) {
      return Error{.message = fmt::format("the sizes up to buffer {} add up to over {} bytes", i,
                                          kMostBytes),
                   .hint = "check the unit of the sizes"};
    }
    total += b.size + b.alignment;
  }
  return std::nullopt;
}

}  // namespace plimsoll
