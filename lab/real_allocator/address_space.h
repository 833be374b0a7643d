// Where the fake cudaMalloc puts segments.
#ifndef PLIMSOLL_TOOLS_REAL_ALLOCATOR_ADDRESS_SPACE_H_
#define PLIMSOLL_TOOLS_REAL_ALLOCATOR_ADDRESS_SPACE_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>

using Address = std::uint64_t;
using Size = std::uint64_t;

inline constexpr Size kRegion = Size{32} << 20;
inline constexpr Address kTop = 0x7f6000000000;
// The range from which scattered addresses are drawn, in regions.
inline constexpr Size kScatterRegions = Size{1} << 16;

inline Size RoundUp(Size size, Size unit) { return (size + unit - 1) / unit * unit; }

// In the manner of an H200 (see fake_device.h), or in random order.
class AddressSpace {
 public:
  void Scatter(std::uint64_t seed) {
    scatter_ = true;
    random_.seed(seed);
  }

  Address Take(Size size) {
    Address at = size < kRegion ? InSharedRegion(size) : 0;
    if (at == 0) at = scatter_ ? RandomRegion(size) : NextRegion(size);
    taken_[at] = size;
    return at;
  }

  // The size of the segment that was there; 0 if there was none.
  Size Give(Address at) {
    const auto found = taken_.find(at);
    if (found == taken_.end()) return 0;
    const Size size = found->second;
    taken_.erase(found);
    const Address region = at / kRegion * kRegion;
    if (shared_.count(region) != 0 && IsFree(region, kRegion)) shared_.erase(region);
    return size;
  }

 private:
  bool IsFree(Address at, Size size) const {
    const auto next = taken_.lower_bound(at);
    if (next != taken_.end() && next->first < at + size) return false;
    return next == taken_.begin() || std::prev(next)->first + std::prev(next)->second <= at;
  }

  // The lowest gap of the lowest region in use that has room, which is the one opened last.
  Address InSharedRegion(Size size) const {
    for (const Address region : shared_) {
      Address at = region;
      for (auto next = taken_.lower_bound(region); at + size <= region + kRegion; ++next) {
        if (next == taken_.end() || next->first >= region + kRegion) return at;
        if (at + size <= next->first) return at;
        at = next->first + next->second;
      }
    }
    return 0;
  }

  // The highest free range.
  Address NextRegion(Size size) {
    const Size whole = RoundUp(size, kRegion);
    Address end = kTop;
    for (auto above = taken_.rbegin(); above != taken_.rend(); ++above) {
      if (end >= RoundUp(above->first + above->second, kRegion) + whole) break;
      end = std::min(end, above->first / kRegion * kRegion);
    }
    return Open(end - whole, size);
  }

  Address RandomRegion(Size size) {
    const Size whole = RoundUp(size, kRegion);
    while (true) {
      const Address at = kTop - whole - random_() % kScatterRegions * kRegion;
      if (IsFree(at, whole)) return Open(at, size);
    }
  }

  Address Open(Address at, Size size) {
    if (size < kRegion) shared_.insert(at);
    return at;
  }

  std::map<Address, Size> taken_;
  std::set<Address> shared_;  // regions used by segments smaller than a region
  bool scatter_ = false;
  std::mt19937_64 random_;
};

#endif  // PLIMSOLL_TOOLS_REAL_ALLOCATOR_ADDRESS_SPACE_H_
