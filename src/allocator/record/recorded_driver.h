// The driver of a recorded run.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "allocator/model/driver.h"
#include "allocator/settings/rules.h"
#include "timeline/timeline.h"

namespace plimsoll {

/// Hands out the addresses that the record shows next.
class RecordedDriver : public Driver {
 public:
  /// `pools` is the pool of each event.
  RecordedDriver(const Timeline& timeline, const AllocatorRules& rules,
                 const std::vector<std::uint8_t>& pools);

  /// From this event on.
  void LookFrom(std::size_t event) { next_ = event; }

  Address NewSegment(Bytes size) override;
  void FreeSegment(Address, Bytes) override {}
  /// A reservation leaves no event. The first mapping in it shows where it lies, which may come
  /// much later: if the driver refuses the memory, the addresses stay reserved without any.
  Address NewReservation(const Reservation& wanted) override;
  void Occupy(Address address, Bytes size, bool expandable) override {
    other_.Occupy(address, size, expandable);
  }

 private:
  const std::vector<Event>& events_;
  std::vector<std::size_t> segments_;
  /// By stream, pool and size class.
  std::map<std::tuple<std::uint16_t, std::uint8_t, bool>, std::vector<std::size_t>> maps_;
  std::size_t next_ = 0;
  /// Where the record has no more.
  AssumedDriver other_;
};

}  // namespace plimsoll
