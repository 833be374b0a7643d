#include "packing/skyline.h"

#include <algorithm>
#include <random>

namespace plimsoll {

Skyline::Skyline(const std::vector<Item>& all, std::uint32_t section_count, Bytes limit)
    : items(all),
      sections(section_count),
      capacity(limit),
      floor(sections, 0),
      gap_bottom(sections, 0),
      waiting(sections, 0),
      crossing(sections, 0),
      waiting_hash(sections, 0),
      placed(items.size(), 0),
      offsets(items.size(), 0),
      covering(sections) {
  std::mt19937_64 random(1);
  item_hash.reserve(items.size());
  for (Index i = 0; i < items.size(); ++i) {
    item_hash.push_back(random());
    waiting_hash[items[i].first] ^= item_hash[i];
    for (Index s = items[i].first; s <= items[i].last; ++s) {
      waiting[s] += items[i].size;
      covering[s].push_back(i);
      if (s < items[i].last) ++crossing[s];
    }
  }
}

void Skyline::SetOrder(const std::vector<Index>& order) {
  Fill(begins, order, true);
  Fill(ends, order, false);
}

void Skyline::Fill(Queues& queues, const std::vector<Index>& order, bool by_first) const {
  queues.head.assign(sections, kNone);
  queues.next.assign(items.size(), kNone);
  queues.previous.assign(items.size(), kNone);
  for (const Index i : order) {  // the last one put in front is the first
    Index& head = queues.head[by_first ? items[i].first : items[i].last];
    queues.next[i] = head;
    if (head != kNone) queues.previous[head] = i;
    head = i;
  }
}

void Skyline::Queues::Remove(Index queue, Index item) {
  if (previous[item] == kNone) {
    head[queue] = next[item];
  } else {
    next[previous[item]] = next[item];
  }
  if (next[item] != kNone) previous[next[item]] = previous[item];
}

void Skyline::Queues::PutBack(Index queue, Index item) {
  if (previous[item] == kNone) {
    head[queue] = item;
  } else {
    next[previous[item]] = item;
  }
  if (next[item] != kNone) previous[next[item]] = item;
}

StateKey Skyline::KeyOf(Span span) const {
  StateKey key{span.begin, span.end};
  for (Index s = span.begin; s < span.end; ++s) {
    const auto height = static_cast<std::uint64_t>(floor[s]);
    const auto gap = static_cast<std::uint64_t>(floor[s] - gap_bottom[s]);
    // Gaps belong to the state, because what they forbid depends on them.
    key.Mix(waiting_hash[s] ^ (height << 1) ^ (gap << 32), waiting_hash[s] + height * 31 + gap);
  }
  return key;
}

bool Skyline::HasRoomForPadding(const Item& item, Bytes height) const {
  const Bytes padding = AlignUp(height, item.alignment) - height;
  for (Index s = item.first; s <= item.last; ++s) {
    if (padding > Slack(s)) return false;
  }
  return true;
}

void Skyline::PlaceItem(Index i, Bytes height) {
  const Item& item = items[i];
  const Bytes offset = AlignUp(height, item.alignment);
  for (Index s = item.first; s <= item.last; ++s) {
    trail.push_back({s, kNone, floor[s], gap_bottom[s]});
    floor[s] = gap_bottom[s] = offset + item.size;
    waiting[s] -= item.size;
    if (s < item.last) --crossing[s];
  }
  last_change = item.first;
  waiting_hash[item.first] ^= item_hash[i];
  placed[i] = 1;
  offsets[i] = offset;
  begins.Remove(item.first, i);
  ends.Remove(item.last, i);
  trail.push_back({0, i, 0, 0});
}

bool Skyline::RaiseFloor(Index section, Bytes height) {
  trail.push_back({section, kNone, floor[section], gap_bottom[section]});
  floor[section] = height;
  last_change = section;
  const Bytes gap = height - gap_bottom[section];
  for (const Index i : covering[section]) {
    const Item& item = items[i];
    if (placed[i] || item.size > gap) continue;
    Bytes bottom = 0;
    Bytes top = capacity;
    for (Index s = item.first; s <= item.last && bottom + item.size <= top; ++s) {
      bottom = std::max(bottom, gap_bottom[s]);
      top = std::min(top, floor[s]);
    }
    if (AlignUp(bottom, item.alignment) + item.size <= top) return false;
  }
  return true;
}

void Skyline::Undo(std::size_t mark) {
  while (trail.size() > mark) {
    const Change change = trail.back();
    trail.pop_back();
    if (change.item == kNone) {
      floor[change.section] = change.floor;
      gap_bottom[change.section] = change.gap_bottom;
      continue;
    }
    const Item& item = items[change.item];
    placed[change.item] = 0;
    for (Index s = item.first; s <= item.last; ++s) {
      waiting[s] += item.size;
      if (s < item.last) ++crossing[s];
    }
    waiting_hash[item.first] ^= item_hash[change.item];
    ends.PutBack(item.last, change.item);
    begins.PutBack(item.first, change.item);
  }
}

}  // namespace plimsoll
