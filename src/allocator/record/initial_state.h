// What was there before the first event: a ring buffer that wrapped, or a recording that was
// switched on late, begins in the middle of a run.
#pragma once

#include <map>
#include <vector>

#include "allocator/record/ledger.h"

namespace plimsoll {

/// Ranges by address; expandable neighbours are one range.
class RangeSet {
 public:
  void Add(const MappedRange& range);
  void Remove(Address address, Bytes size);
  std::vector<MappedRange> List() const;
  /// The one that begins at this address, or none.
  const MappedRange* BeginningAt(Address address) const;
  /// The one in which the address lies; where a record contradicts itself, of several the last.
  const MappedRange* Around(Address address) const;

 private:
  std::map<Address, MappedRange> ranges_;
};

/// The ranges before the first event: those of the end, with every segment event undone.
std::vector<MappedRange> InitialRanges(const Timeline& timeline);

/// An allocation from before the record, with the size of its block as far as it can be told.
struct EarlierBlock {
  Allocation allocation;
  /// Freed by the program, but another stream still used it when the record began.
  bool pending = false;
  bool exact = false;
  /// When the record frees it; kNotYet where it stays.
  Position freed = kNotYet;
};

/// Blocks alive before the first event, in order of address, their sizes completed.
std::vector<EarlierBlock> EarlierBlocks(const Timeline& timeline, const AllocatorRules& rules,
                                        const std::vector<MappedRange>& ranges);

}  // namespace plimsoll
