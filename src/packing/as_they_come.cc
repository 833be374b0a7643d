#include "packing/as_they_come.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace plimsoll {
namespace {

/// What lies between the buffers that are alive, and above all of them.
class FreePieces {
 public:
  Bytes Take(Bytes size, Bytes alignment) {
    // A piece as large as size and padding together always holds it.
    const auto found = by_size_.lower_bound({size + alignment - 1, 0});
    if (found == by_size_.end()) {
      const Bytes offset = AlignUp(top_, alignment);
      if (offset > top_) Add(top_, offset - top_);
      top_ = offset + size;
      return offset;
    }
    const auto [length, begin] = *found;
    Remove(begin, length);
    const Bytes offset = AlignUp(begin, alignment);
    if (offset > begin) Add(begin, offset - begin);
    if (offset + size < begin + length) Add(offset + size, begin + length - offset - size);
    return offset;
  }

  void GiveBack(Bytes offset, Bytes size) {
    auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.end() && after->first == offset + size) {
      size += after->second;
      Remove(after->first, after->second);
      after = by_offset_.lower_bound(offset);
    }
    if (after != by_offset_.begin()) {
      const auto [begin, length] = *std::prev(after);
      if (begin + length == offset) {
        Remove(begin, length);
        offset = begin;
        size += length;
      }
    }
    Add(offset, size);
  }

 private:
  void Add(Bytes offset, Bytes size) {
    by_offset_[offset] = size;
    by_size_.emplace(size, offset);
  }
  void Remove(Bytes offset, Bytes size) {
    by_offset_.erase(offset);
    by_size_.erase({size, offset});
  }

  std::map<Bytes, Bytes> by_offset_;
  std::set<std::pair<Bytes, Bytes>> by_size_;
  Bytes top_ = 0;
};

}  // namespace

Packing PackAsTheyCome(const Problem& problem) {
  const std::vector<Buffer>& buffers = problem.buffers;
  std::vector<std::size_t> by_lower(buffers.size());
  std::iota(by_lower.begin(), by_lower.end(), std::size_t{0});
  std::vector<std::size_t> by_upper = by_lower;
  std::stable_sort(by_lower.begin(), by_lower.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].lower < buffers[b].lower;
  });
  std::stable_sort(by_upper.begin(), by_upper.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].upper < buffers[b].upper;
  });
  Packing packing{.offsets = std::vector<Bytes>(buffers.size(), 0)};
  FreePieces pieces;
  std::size_t ended = 0;
  for (const std::size_t i : by_lower) {
    const Buffer& buffer = buffers[i];
    // What ends when this one begins has begun before it, or takes nothing.
    for (; buffers[by_upper[ended]].upper <= buffer.lower; ++ended) {
      const Buffer& done = buffers[by_upper[ended]];
      if (done.size > 0) pieces.GiveBack(packing.offsets[by_upper[ended]], done.size);
    }
    if (buffer.size == 0) continue;
    packing.offsets[i] = pieces.Take(buffer.size, buffer.alignment);
    packing.height = std::max(packing.height, packing.offsets[i] + buffer.size);
  }
  return packing;
}

}  // namespace plimsoll
