// Where the exact search stands: how high each section is filled and which items still wait. Every
// change is put on a trail, so that it can be taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packing/failed_states.h"
#include "packing/instance.h"

namespace plimsoll {

struct Skyline {
  using Index = std::uint32_t;
  static constexpr Index kNone = 0xffffffffu;

  /// Sections [begin, end).
  struct Span {
    Index begin = 0;
    Index end = 0;
  };
  /// What to restore. `item` is kNone for a floor.
  struct Change {
    Index section;
    Index item;
    Bytes floor;
    Bytes gap_bottom;
  };
  /// The waiting items that begin, or end, in each section, linked in the order of preference.
  struct Queues {
    std::vector<Index> head;
    std::vector<Index> next;
    std::vector<Index> previous;

    void Remove(Index queue, Index item);
    void PutBack(Index queue, Index item);
  };

  Skyline(const std::vector<Item>& all, std::uint32_t section_count, Bytes limit);

  /// The last comes first in the queues.
  void SetOrder(const std::vector<Index>& order);

  /// What a section can still waste.
  Bytes Slack(Index section) const { return capacity - floor[section] - waiting[section]; }
  bool FitsOnFloor(Index item, Bytes height) const {
    return items[item].alignment == 1 || HasRoomForPadding(items[item], height);
  }
  /// Stands for everything that what can follow depends on.
  StateKey KeyOf(Span span) const;

  void PlaceItem(Index item, Bytes height);
  /// False if some waiting item would have fitted in the gap that this leaves: then a solution with
  /// that item in the gap exists too, if any does, and the search finds it elsewhere.
  bool RaiseFloor(Index section, Bytes height);
  /// Back to when the trail had this length.
  void Undo(std::size_t mark);

  const std::vector<Item>& items;
  const Index sections;
  const Bytes capacity;

  std::vector<Bytes> floor;
  /// Where the gap just below the floor begins; the floor itself if there is none.
  std::vector<Bytes> gap_bottom;
  /// Bytes of the waiting items of each section.
  std::vector<Bytes> waiting;
  /// How many waiting items are alive both in this section and in the next.
  std::vector<Index> crossing;
  /// The waiting items that begin in each section, as a sum of random numbers.
  std::vector<std::uint64_t> waiting_hash;
  std::vector<std::uint64_t> item_hash;
  std::vector<char> placed;
  std::vector<Bytes> offsets;
  /// All items of each section.
  std::vector<std::vector<Index>> covering;
  Queues begins;
  Queues ends;

  std::vector<Change> trail;
  Index last_change = 0;

 private:
  bool HasRoomForPadding(const Item& item, Bytes height) const;
  void Fill(Queues& queues, const std::vector<Index>& order, bool by_first) const;
};

}  // namespace plimsoll
