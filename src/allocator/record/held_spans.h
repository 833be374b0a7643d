// What is held from the driver, cut into stretches of time without change, for a History.
#pragma once

#include <map>
#include <vector>

#include "allocator/record/initial_state.h"
#include "timeline/history.h"

namespace plimsoll {

class HeldSpans {
 public:
  explicit HeldSpans(std::vector<HistorySpan>& spans) : spans_(spans) {}

  void Add(const MappedRange& range);
  void Remove(Address address, Bytes size);
  /// What was added and removed since the last time happened at `at`, as one change.
  void Settle(Position at);

 private:
  void Compare(Address begin, Position at);

  std::vector<HistorySpan>& spans_;
  RangeSet ranges_;
  /// Where a range may have begun, ended or changed its size since the last time, by its beginning.
  std::vector<Address> changed_;
  /// The spans that have not ended, by address.
  std::map<Address, std::size_t> open_;
};

}  // namespace plimsoll
