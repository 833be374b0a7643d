// Which place the search decides next, and what it can tell about a valley before deciding.
#include <algorithm>
#include <limits>

#include "packing/search.h"

namespace plimsoll {
namespace {

constexpr Bytes kNoItem = std::numeric_limits<Bytes>::max();

}  // namespace

/// The best place of the span. False if some valley cannot be filled any more. What was changed
/// last is looked at first, because a dead end is most likely there.
bool Search::ChoosePlace(Span span, Place& best) {
  best.score = std::numeric_limits<double>::infinity();
  Index middle = std::clamp(sky_.last_change, span.begin, span.end - 1);
  if (middle > span.begin) --middle;  // its left neighbour may have become the end of a valley
  while (middle > span.begin && sky_.floor[middle - 1] == sky_.floor[middle]) --middle;
  return LookAtAll({middle, span.end}, span, best) && LookAtAll({span.begin, middle}, span, best);
}

/// Looks at the valleys that begin in a part of the span, until one has a single option.
bool Search::LookAtAll(Span part, Span span, Place& best) {
  for (Index begin = part.begin; begin < part.end && best.score > 0;) {
    Index end = begin + 1;
    while (end < span.end && sky_.floor[end] == sky_.floor[begin]) ++end;
    Valley valley{{begin, end}, sky_.floor[begin], sky_.capacity, sky_.capacity};
    if (begin > span.begin) valley.left_wall = sky_.floor[begin - 1];
    if (end < span.end) valley.right_wall = sky_.floor[end];
    const bool low = valley.left_wall > valley.floor && valley.right_wall > valley.floor;
    if (low && !LookAt(valley, span, best)) {
      trouble_[begin] += 1;
      return false;
    }
    begin = end;
  }
  return true;
}

bool Search::LookAt(const Valley& valley, Span span, Place& best) {
  EndFacts left;
  EndFacts right;
  GatherFacts(valley, left, right);
  if (!CanBeFilled(valley)) return false;
  const Index begin = valley.span.begin;
  const Index end = valley.span.end;
  const bool crosses_left = begin > span.begin && sky_.crossing[begin - 1] > 0;
  const bool crosses_right = end < span.end && sky_.crossing[end - 1] > 0;
  return Consider({.valley = valley, .left = true}, left, crosses_left, best) &&
         Consider({.valley = valley, .left = false}, right, crosses_right, best);
}

/// Also leaves in difference_ how the bytes change from section to section that lie in the valley
/// entirely.
void Search::GatherFacts(const Valley& valley, EndFacts& left, EndFacts& right) {
  const auto [begin, end] = valley.span;
  left.smallest_elsewhere = right.smallest_elsewhere = kNoItem;
  std::fill(difference_.begin() + begin, difference_.begin() + end + 1, 0);
  for (Index s = begin; s < end; ++s) {
    ++work_;
    for (Index i = sky_.begins.head[s]; i != kNone; i = sky_.begins.next[i]) {
      ++work_;
      const Item& item = sky_.items[i];
      if (item.last >= end) {
        left.crosses_far_wall |= s == begin;
        continue;
      }
      difference_[s] += item.size;
      difference_[item.last + 1] -= item.size;
      const bool fits = sky_.FitsOnFloor(i, valley.floor);
      if (s == begin) {
        left.candidates += fits;
        left.reaches_on |= item.last > s;
      } else {
        left.smallest_elsewhere = std::min(left.smallest_elsewhere, item.size);
      }
      if (item.last + 1 == end) {
        right.candidates += fits;
        right.reaches_on |= item.last > s;
      } else {
        right.smallest_elsewhere = std::min(right.smallest_elsewhere, item.size);
      }
    }
  }
  for (Index i = sky_.ends.head[end - 1]; i != kNone && !right.crosses_far_wall;
       i = sky_.ends.next[i]) {
    right.crosses_far_wall = sky_.items[i].first < begin;
  }
}

/// Up to the lower wall only items that lie in the valley entirely can fill it; what they leave
/// open is wasted.
bool Search::CanBeFilled(const Valley& valley) {
  const Bytes depth = std::min(valley.left_wall, valley.right_wall) - valley.floor;
  if (depth + valley.floor >= sky_.capacity) return true;
  Bytes inside = 0;
  for (Index s = valley.span.begin; s < valley.span.end; ++s) {
    inside += difference_[s];
    if (depth - inside > sky_.Slack(s)) return false;
  }
  return true;
}

/// Counts the options at a place and keeps it if it is better. False if there are none.
bool Search::Consider(Place place, const EndFacts& facts, bool crosses_near_wall, Place& best) {
  const Valley& valley = place.valley;
  // If no item lies on the floor here, the next one rests on a wall that it reaches over, or on an
  // item that is placed elsewhere in the valley first.
  Bytes next = kNoItem;
  if (crosses_near_wall) next = place.left ? valley.left_wall : valley.right_wall;
  if (facts.crosses_far_wall) {
    next = std::min(next, place.left ? valley.right_wall : valley.left_wall);
  }
  if (facts.reaches_on && facts.smallest_elsewhere != kNoItem) {
    next = std::min(next, valley.floor + facts.smallest_elsewhere);
  }
  place.candidates = facts.candidates;
  place.raised_floor = next;
  place.may_raise = next != kNoItem && next - valley.floor <= sky_.Slack(place.Section());
  if (place.Options() == 0) return false;
  place.score = Score(place);
  if (place.score < best.score) best = place;
  return true;
}

/// Few options, and where the search failed before: what is hard is decided early, while it can be.
double Search::Score(const Place& place) const {
  if (place.Options() == 1) return 0;
  return double(place.Options()) / (1 + trouble_[place.Section()]);
}

}  // namespace plimsoll
