#include "packing/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace plimsoll {
namespace {

/// Each level of recursion is a decision; this many use about two megabytes of the stack.
constexpr std::uint32_t kDeepest = 8000;

double PreferenceOf(const Item& item, Preference preference) {
  const double length = double(item.last - item.first + 1);
  switch (preference) {
    case Preference::kLongest:
      return length;
    case Preference::kLargestArea:
      return length * double(item.size);
    case Preference::kLargest:
      return double(item.size);
    case Preference::kSmallest:
      return 1 / double(item.size);
  }
  return 0;
}

unsigned TableBits(std::size_t items) { return items < 100 ? 14 : 19; }

}  // namespace

Search::Search(const std::vector<Item>& items, std::uint32_t sections, Bytes capacity)
    : items_(items),
      sections_(sections),
      capacity_(capacity),
      floor_(sections, 0),
      gap_bottom_(sections, 0),
      waiting_(sections, 0),
      crossing_(sections, 0),
      waiting_hash_(sections, 0),
      placed_(items.size(), 0),
      offsets_(items.size(), 0),
      covering_(sections),
      trouble_(sections, 0),
      difference_(sections + 1, 0),
      failed_(TableBits(items.size())) {
  std::mt19937_64 random(1);
  item_hash_.reserve(items.size());
  for (Index i = 0; i < items.size(); ++i) {
    item_hash_.push_back(random());
    waiting_hash_[items[i].first] ^= item_hash_[i];
    for (Index s = items[i].first; s <= items[i].last; ++s) {
      waiting_[s] += items[i].size;
      covering_[s].push_back(i);
      if (s < items[i].last) ++crossing_[s];
    }
  }
  FindKinds();
}

void Search::FindKinds() {
  std::vector<Index> order(items_.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto key = [&](Index i) {
    const Item& item = items_[i];
    return std::tuple(item.first, item.last, item.size, item.alignment);
  };
  std::sort(order.begin(), order.end(), [&](Index a, Index b) { return key(a) < key(b); });
  kind_.assign(items_.size(), 0);
  for (std::size_t i = 1; i < order.size(); ++i) {
    kind_[order[i]] = kind_[order[i - 1]] + (key(order[i]) == key(order[i - 1]) ? 0u : 1u);
  }
  seen_.assign(items_.size(), 0);
}

Outcome Search::Run(const Attempt& attempt, const StopSign& stop) {
  for (Index s = 0; s < sections_; ++s) {
    if (Slack(s) < 0) return Outcome::kImpossible;
  }
  stop_ = &stop;
  most_nodes_ = attempt.most_nodes;
  nodes_ = 0;
  depth_ = 0;
  gave_up_ = false;
  SetOrder(attempt);
  const bool found = Solve({0, sections_});
  all_nodes_ += nodes_;
  if (!found) return gave_up_ ? Outcome::kGaveUp : Outcome::kImpossible;
  const std::vector<Bytes> offsets = offsets_;
  Undo(0);  // ready for another run
  offsets_ = offsets;
  return Outcome::kFound;
}

void Search::SetOrder(const Attempt& attempt) {
  std::mt19937_64 random(attempt.seed);
  std::vector<double> value;
  value.reserve(items_.size());
  for (const Item& item : items_) {
    const double chance = double(random() >> 11) * 0x1p-53 * 2 - 1;
    value.push_back(PreferenceOf(item, attempt.preference) * std::exp(attempt.noise * chance));
  }
  std::vector<Index> order(items_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](Index a, Index b) { return value[a] < value[b]; });
  Fill(begins_, order, true);
  Fill(ends_, order, false);
}

void Search::Fill(Queues& queues, const std::vector<Index>& order, bool by_first) {
  queues.head.assign(sections_, kNone);
  queues.next.assign(items_.size(), kNone);
  queues.previous.assign(items_.size(), kNone);
  for (const Index i : order) {  // the last one put in front is the first
    Index& head = queues.head[by_first ? items_[i].first : items_[i].last];
    queues.next[i] = head;
    if (head != kNone) queues.previous[head] = i;
    head = i;
  }
}

void Search::Queues::Remove(Index queue, Index item) {
  if (previous[item] == kNone) {
    head[queue] = next[item];
  } else {
    next[previous[item]] = next[item];
  }
  if (next[item] != kNone) previous[next[item]] = previous[item];
}

void Search::Queues::PutBack(Index queue, Index item) {
  if (previous[item] == kNone) {
    head[queue] = item;
  } else {
    next[previous[item]] = item;
  }
  if (next[item] != kNone) previous[next[item]] = item;
}

bool Search::MustStop() {
  constexpr std::uint64_t kBetweenLooks = 1'000'000;
  ++nodes_;
  const bool looks = (nodes_ & 255) == 0 || work_ - work_at_last_look_ > kBetweenLooks;
  if (looks) work_at_last_look_ = work_;
  if (nodes_ >= most_nodes_ || work_ >= stop_->most_work || depth_ > kDeepest ||
      (looks && stop_->Reached())) {
    gave_up_ = true;
  }
  return gave_up_;
}

bool Search::Solve(Span span) {
  const std::size_t mark = trail_.size();
  ++depth_;
  bool solved = false;
  while (!MustStop()) {
    const std::size_t base = pieces_.size();
    FindPieces(span);
    const std::size_t count = pieces_.size() - base;
    if (count != 1) {
      solved = count == 0 || SolvePieces(base);
      break;
    }
    span = pieces_.back();
    pieces_.pop_back();
    const StateKey key = KeyOf(span);
    if (failed_.Contains(key)) break;
    Place place;
    if (!ChoosePlace(span, place)) break;
    if (place.Options() == 1) {
      if (!TakeOnlyOption(place)) break;
      continue;
    }
    solved = Branch(span, place);
    if (!solved && !gave_up_) failed_.Add(key);
    break;
  }
  --depth_;
  if (!solved) Undo(mark);
  return solved;
}

/// Parts of the span that no waiting item connects. Each is solved for itself: what fails in one
/// cannot be mended in another.
void Search::FindPieces(Span span) {
  Index begin = kNone;
  work_ += span.end - span.begin;
  for (Index s = span.begin; s < span.end; ++s) {
    if (waiting_[s] == 0) continue;
    if (begin == kNone) begin = s;
    if (s + 1 == span.end || crossing_[s] == 0) {
      pieces_.push_back({begin, s + 1});
      begin = kNone;
    }
  }
}

bool Search::SolvePieces(std::size_t base) {
  std::sort(pieces_.begin() + static_cast<std::ptrdiff_t>(base), pieces_.end(),
            [](const Span& a, const Span& b) { return a.end - a.begin < b.end - b.begin; });
  bool solved = true;
  const std::size_t end = pieces_.size();
  for (std::size_t i = base; i < end && solved; ++i) solved = Solve(Span(pieces_[i]));
  pieces_.resize(base);
  return solved;
}

StateKey Search::KeyOf(Span span) const {
  StateKey key{span.begin, span.end};
  for (Index s = span.begin; s < span.end; ++s) {
    const auto floor = static_cast<std::uint64_t>(floor_[s]);
    const auto gap = static_cast<std::uint64_t>(floor_[s] - gap_bottom_[s]);
    // Gaps belong to the state, because what they forbid depends on them.
    key.Mix(waiting_hash_[s] ^ (floor << 1) ^ (gap << 32), waiting_hash_[s] + floor * 31 + gap);
  }
  return key;
}

bool Search::Branch(Span span, const Place& place) {
  const std::size_t base = candidates_.size();
  CollectCandidates(place);
  const std::size_t end = candidates_.size();
  bool solved = false;
  for (std::size_t i = base; i < end && !solved && !gave_up_; ++i) {
    const std::size_t mark = trail_.size();
    PlaceItem(candidates_[i], place.valley.floor);
    solved = Solve(span);
    if (!solved) Undo(mark);
  }
  candidates_.resize(base);
  if (!solved && !gave_up_ && place.may_raise) {
    const std::size_t mark = trail_.size();
    solved = RaiseFloor(place.Section(), place.raised_floor) && Solve(span);
    if (!solved) Undo(mark);
  }
  return solved;
}

void Search::CollectCandidates(const Place& place) {
  const Queues& queues = place.left ? begins_ : ends_;
  const Span span = place.valley.span;
  ++collection_;
  for (Index i = queues.head[place.Section()]; i != kNone; i = queues.next[i]) {
    ++work_;
    const Item& item = items_[i];
    if (item.first < span.begin || item.last >= span.end) continue;
    if (!FitsOnFloor(i, place.valley.floor)) continue;
    if (std::exchange(seen_[kind_[i]], collection_) != collection_) candidates_.push_back(i);
  }
}

bool Search::TakeOnlyOption(const Place& place) {
  if (place.may_raise) return RaiseFloor(place.Section(), place.raised_floor);
  const std::size_t base = candidates_.size();
  CollectCandidates(place);
  PlaceItem(candidates_[base], place.valley.floor);
  candidates_.resize(base);
  return true;
}

void Search::PlaceItem(Index i, Bytes floor) {
  const Item& item = items_[i];
  const Bytes offset = AlignUp(floor, item.alignment);
  for (Index s = item.first; s <= item.last; ++s) {
    trail_.push_back({s, kNone, floor_[s], gap_bottom_[s]});
    floor_[s] = gap_bottom_[s] = offset + item.size;
    waiting_[s] -= item.size;
    if (s < item.last) --crossing_[s];
  }
  last_change_ = item.first;
  waiting_hash_[item.first] ^= item_hash_[i];
  placed_[i] = 1;
  offsets_[i] = offset;
  begins_.Remove(item.first, i);
  ends_.Remove(item.last, i);
  trail_.push_back({0, i, 0, 0});
}

bool Search::RaiseFloor(Index section, Bytes floor) {
  trail_.push_back({section, kNone, floor_[section], gap_bottom_[section]});
  floor_[section] = floor;
  last_change_ = section;
  const Bytes gap = floor - gap_bottom_[section];
  work_ += covering_[section].size();
  for (const Index i : covering_[section]) {
    const Item& item = items_[i];
    if (placed_[i] || item.size > gap) continue;
    Bytes bottom = 0;
    Bytes top = capacity_;
    for (Index s = item.first; s <= item.last && bottom + item.size <= top; ++s) {
      bottom = std::max(bottom, gap_bottom_[s]);
      top = std::min(top, floor_[s]);
    }
    if (AlignUp(bottom, item.alignment) + item.size <= top) return false;
  }
  return true;
}

void Search::Undo(std::size_t mark) {
  while (trail_.size() > mark) {
    const Change change = trail_.back();
    trail_.pop_back();
    if (change.item == kNone) {
      floor_[change.section] = change.floor;
      gap_bottom_[change.section] = change.gap_bottom;
      continue;
    }
    const Item& item = items_[change.item];
    placed_[change.item] = 0;
    for (Index s = item.first; s <= item.last; ++s) {
      waiting_[s] += item.size;
      if (s < item.last) ++crossing_[s];
    }
    waiting_hash_[item.first] ^= item_hash_[change.item];
    ends_.PutBack(item.last, change.item);
    begins_.PutBack(item.first, change.item);
  }
}

}  // namespace plimsoll
