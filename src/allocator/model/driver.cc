#include "allocator/model/driver.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr Address kRegion = 32 * kMiB;
/// Where the first reservation of an expandable segment was seen to lie.
constexpr Address kFirstReservation = 0x302000000;
/// Where segments begin if the record has none to go by.
constexpr Address kTop = 0x7f0000000000;
constexpr Address kLeastRoom = Address{1} << 46;
/// Above every address that a device has.
constexpr Address kBeyond = Address{1} << 63;

Address DownTo(Address address, Address unit) { return address / unit * unit; }
Address UpTo(Address address, Address unit) { return (address + unit - 1) / unit * unit; }

}  // namespace

double DriverMicroseconds(Action action, Bytes size, Bytes page) {
  const double mib = double(size) / double(kMiB);
  const double pages = std::max(1.0, double(size) / double(page));
  switch (action) {
    case Action::kSegmentAlloc:
      return 30 + 0.075 * mib;
    case Action::kSegmentFree:
      return 27 + 0.3 * mib;
    case Action::kSegmentMap:
      return 30 + 20 * pages;
    case Action::kSegmentUnmap:
      return 40 * pages;
    default:
      return 0;
  }
}

AssumedDriver::AssumedDriver(const Timeline& timeline)
    : lowest_(kTop), next_reservation_(kFirstReservation) {
  const auto note = [&](Address address, Bytes size) {
    recorded_[size].addresses.push_back(address);
    lowest_ = std::min(lowest_, address);
  };
  std::map<Address, Bytes> made;
  for (const Event& e : timeline.events) {
    if (e.action == Action::kSegmentAlloc) made[e.address] = e.size;
  }
  // Those from before the record come first.
  for (const Segment& s : timeline.segments) {
    if (!s.expandable && made.find(s.address) == made.end()) note(s.address, s.size);
  }
  for (const Event& e : timeline.events) {
    if (e.action == Action::kSegmentAlloc) note(e.address, e.size);
  }
  // A record with strangely low addresses leaves no room below them.
  if (lowest_ < kLeastRoom) lowest_ = kTop;
  lowest_ = DownTo(lowest_, kRegion);
}

std::optional<Address> AssumedDriver::InTheWay(Address address, Bytes size) const {
  const Address end = address + static_cast<Address>(size);
  const auto after = taken_.lower_bound(end);
  if (after == taken_.begin()) return std::nullopt;
  const auto before = std::prev(after);
  const bool apart = before->first + static_cast<Address>(before->second) <= address;
  return apart ? std::nullopt : std::optional(before->first);
}

void AssumedDriver::Take(Address address, Bytes size) { taken_[address] = size; }

Address AssumedDriver::NewSegment(Bytes size) {
  if (const auto it = recorded_.find(size); it != recorded_.end()) {
    Recorded& same = it->second;
    if (same.used < same.addresses.size()) {
      const Address address = same.addresses[same.used++];
      if (!InTheWay(address, size)) {
        Take(address, size);
        return address;
      }
    }
  }
  const Address fresh = FreshAddress(static_cast<Address>(size));
  Take(fresh, size);
  return fresh;
}

/// Regions downward, each filled upward; what is taken already is passed over.
Address AssumedDriver::FreshAddress(Address bytes) {
  const auto size = static_cast<Bytes>(bytes);
  if (bytes < kRegion && region_ != 0 && region_next_ + bytes <= region_ + kRegion &&
      !InTheWay(region_next_, size)) {
    region_next_ += bytes;
    return region_next_ - bytes;
  }
  const Address step = UpTo(bytes, kRegion);
  for (std::optional<Address> obstacle = kBeyond; obstacle;) {
    lowest_ = std::min(lowest_, DownTo(*obstacle, kRegion));
    // What no device could hold does not fit below either; any free addresses will do for it.
    if (lowest_ < step) lowest_ = kBeyond;
    lowest_ -= step;
    obstacle = InTheWay(lowest_, size);
  }
  if (bytes < kRegion) {
    region_ = lowest_;
    region_next_ = lowest_ + bytes;
  }
  return lowest_;
}

void AssumedDriver::Occupy(Address address, Bytes size, bool expandable) {
  if (expandable) {
    const Address end = address + static_cast<Address>(size);
    next_reservation_ = std::max(next_reservation_, UpTo(end, kRegion));
    return;
  }
  Take(address, size);
  // It is no address for a new segment.
  std::vector<Address>& same = recorded_[size].addresses;
  const auto it = std::find(same.begin(), same.end(), address);
  if (it != same.end()) same.erase(it);
}

void AssumedDriver::FreeSegment(Address address, Bytes) { taken_.erase(address); }

Address ShuffledDriver::NewSegment(Bytes) {
  // An odd factor permutes the numbers below 2^24: no two segments meet, whatever their size, as
  // long as that is below 2^39.
  const std::uint64_t place = ((made_++ + seed_) * (0x9e3779b1u | 1u) + seed_ * 7919) & 0xffffffu;
  return (place + 1) << 39;
}

Address ShuffledDriver::NewReservation(const Reservation& reservation) {
  const Address address = next_reservation_;
  next_reservation_ += UpTo(static_cast<Address>(reservation.size), kRegion);
  return address;
}

Address AssumedDriver::NewReservation(const Reservation& reservation) {
  const Address address = next_reservation_;
  next_reservation_ = UpTo(address + static_cast<Address>(reservation.size), kRegion);
  return address;
}

}  // namespace plimsoll
