#include "packing/instance.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace plimsoll {
namespace {

struct Range {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  friend auto operator<=>(const Range&, const Range&) = default;
};

struct Ranges {
  std::vector<Range> of_buffer;
  std::uint32_t sections = 0;
};

/// A section closes where an end follows a beginning: until then the living set only grew, and the
/// instants before are parts of this one.
Ranges FindRanges(const Problem& problem, const std::vector<std::uint32_t>& buffers) {
  Ranges ranges;
  ranges.of_buffer.resize(problem.buffers.size());
  std::vector<std::uint32_t> by_lower = buffers;
  std::vector<std::uint32_t> by_upper = buffers;
  const auto& all = problem.buffers;
  std::sort(by_lower.begin(), by_lower.end(),
            [&](auto a, auto b) { return all[a].lower < all[b].lower; });
  std::sort(by_upper.begin(), by_upper.end(),
            [&](auto a, auto b) { return all[a].upper < all[b].upper; });
  std::size_t begun = 0;
  for (std::size_t ended = 0; ended < by_upper.size(); ++ranges.sections) {
    while (begun < by_lower.size() && all[by_lower[begun]].lower < all[by_upper[ended]].upper) {
      ranges.of_buffer[by_lower[begun++]].first = ranges.sections;
    }
    const Tick next =
        begun < by_lower.size() ? all[by_lower[begun]].lower : std::numeric_limits<Tick>::max();
    while (ended < by_upper.size() && all[by_upper[ended]].upper <= next) {
      ranges.of_buffer[by_upper[ended++]].last = ranges.sections;
    }
  }
  return ranges;
}

/// Whether alignments need no attention: every offset is a sum of sizes, and so a multiple of what
/// divides them all.
bool AlignmentsAreFree(const Problem& problem) {
  Bytes divisor = 0;
  for (const Buffer& b : problem.buffers) divisor = std::gcd(divisor, b.size);
  return std::all_of(problem.buffers.begin(), problem.buffers.end(),
                     [&](const Buffer& b) { return divisor % b.alignment == 0; });
}

void MeasureLoad(Instance& instance) {
  instance.load.assign(instance.sections + 1, 0);
  for (const Item& item : instance.items) {
    instance.load[item.first] += item.size;
    instance.load[item.last + 1] -= item.size;
  }
  std::partial_sum(instance.load.begin(), instance.load.end(), instance.load.begin());
  instance.load.pop_back();
}

}  // namespace

Instance Reduce(const Problem& problem) {
  std::vector<std::uint32_t> buffers;
  for (std::uint32_t i = 0; i < problem.buffers.size(); ++i) {
    if (problem.buffers[i].size > 0) buffers.push_back(i);
  }
  const Ranges ranges = FindRanges(problem, buffers);
  const bool free = AlignmentsAreFree(problem);
  std::stable_sort(buffers.begin(), buffers.end(),
                   [&](auto a, auto b) { return ranges.of_buffer[a] < ranges.of_buffer[b]; });
  Instance instance;
  instance.sections = ranges.sections;
  for (const std::uint32_t i : buffers) {
    const Range range = ranges.of_buffer[i];
    const Buffer& b = problem.buffers[i];
    if (free && range.first == 0 && range.last + 1 == ranges.sections) {
      instance.bottom.push_back(i);
      instance.bottom_size += b.size;
      continue;
    }
    instance.items.push_back({range.first, range.last, b.size, free ? 1 : b.alignment});
    instance.buffer.push_back(i);
  }
  MeasureLoad(instance);
  return instance;
}

Packing Expand(const Problem& problem, const Instance& instance,
               const std::vector<Bytes>& item_offsets) {
  Packing packing;
  packing.offsets.assign(problem.buffers.size(), 0);
  const auto place = [&](std::uint32_t buffer, Bytes offset) {
    packing.offsets[buffer] = offset;
    packing.height = std::max(packing.height, offset + problem.buffers[buffer].size);
  };
  Bytes offset = 0;
  for (const std::uint32_t buffer : instance.bottom) {
    place(buffer, offset);
    offset += problem.buffers[buffer].size;
  }
  for (std::size_t i = 0; i < instance.items.size(); ++i) {
    place(instance.buffer[i], instance.bottom_size + item_offsets[i]);
  }
  return packing;
}

}  // namespace plimsoll
