#include "packing/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
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
    : sky_(items, sections, capacity),
      trouble_(sections, 0),
      difference_(sections + 1, 0),
      failed_(TableBits(items.size())) {
  FindKinds();
}

void Search::FindKinds() {
  std::vector<Index> order(sky_.items.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto key = [&](Index i) {
    const Item& item = sky_.items[i];
    return std::tuple(item.first, item.last, item.size, item.alignment);
  };
  std::sort(order.begin(), order.end(), [&](Index a, Index b) { return key(a) < key(b); });
  kind_.assign(sky_.items.size(), 0);
  for (std::size_t i = 1; i < order.size(); ++i) {
    kind_[order[i]] = kind_[order[i - 1]] + (key(order[i]) == key(order[i - 1]) ? 0u : 1u);
  }
  seen_.assign(sky_.items.size(), 0);
}

SearchOutcome Search::Run(const Attempt& attempt, const StopSign& stop) {
  for (Index s = 0; s < sky_.sections; ++s) {
    if (sky_.Slack(s) < 0) return SearchOutcome::kImpossible;
  }
  stop_ = &stop;
  most_nodes_ = attempt.most_nodes;
  nodes_ = 0;
  depth_ = 0;
  gave_up_ = false;
  SetOrder(attempt);
  const bool found = Solve({0, sky_.sections});
  all_nodes_ += nodes_;
  if (!found) return gave_up_ ? SearchOutcome::kGaveUp : SearchOutcome::kImpossible;
  const std::vector<Bytes> offsets = sky_.offsets;
  sky_.Undo(0);  // ready for another run
  sky_.offsets = offsets;
  return SearchOutcome::kFound;
}

void Search::SetOrder(const Attempt& attempt) {
  std::mt19937_64 random(attempt.seed);
  std::vector<double> value;
  value.reserve(sky_.items.size());
  for (const Item& item : sky_.items) {
    const double chance = double(random() >> 11) * 0x1p-53 * 2 - 1;
    value.push_back(PreferenceOf(item, attempt.preference) * std::exp(attempt.noise * chance));
  }
  std::vector<Index> order(sky_.items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](Index a, Index b) { return value[a] < value[b]; });
  sky_.SetOrder(order);
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
  const std::size_t mark = sky_.trail.size();
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
    const StateKey key = sky_.KeyOf(span);
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
  if (!solved) sky_.Undo(mark);
  return solved;
}

/// Parts of the span that no waiting item connects. Each is solved for itself: what fails in one
/// cannot be mended in another.
void Search::FindPieces(Span span) {
  Index begin = kNone;
  work_ += span.end - span.begin;
  for (Index s = span.begin; s < span.end; ++s) {
    if (sky_.waiting[s] == 0) continue;
    if (begin == kNone) begin = s;
    if (s + 1 == span.end || sky_.crossing[s] == 0) {
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

bool Search::Branch(Span span, const Place& place) {
  const std::size_t base = candidates_.size();
  CollectCandidates(place);
  const std::size_t end = candidates_.size();
  bool solved = false;
  for (std::size_t i = base; i < end && !solved && !gave_up_; ++i) {
    const std::size_t mark = sky_.trail.size();
    sky_.PlaceItem(candidates_[i], place.valley.floor);
    solved = Solve(span);
    if (!solved) sky_.Undo(mark);
  }
  candidates_.resize(base);
  if (!solved && !gave_up_ && place.may_raise) {
    const std::size_t mark = sky_.trail.size();
    solved = Raise(place) && Solve(span);
    if (!solved) sky_.Undo(mark);
  }
  return solved;
}

void Search::CollectCandidates(const Place& place) {
  const Skyline::Queues& queues = place.left ? sky_.begins : sky_.ends;
  const Span span = place.valley.span;
  ++collection_;
  for (Index i = queues.head[place.Section()]; i != kNone; i = queues.next[i]) {
    ++work_;
    const Item& item = sky_.items[i];
    if (item.first < span.begin || item.last >= span.end) continue;
    if (!sky_.FitsOnFloor(i, place.valley.floor)) continue;
    if (std::exchange(seen_[kind_[i]], collection_) != collection_) candidates_.push_back(i);
  }
}

bool Search::Raise(const Place& place) {
  work_ += sky_.covering[place.Section()].size();
  return sky_.RaiseFloor(place.Section(), place.raised_floor);
}

bool Search::TakeOnlyOption(const Place& place) {
  if (place.may_raise) return Raise(place);
  const std::size_t base = candidates_.size();
  CollectCandidates(place);
  sky_.PlaceItem(candidates_[base], place.valley.floor);
  candidates_.resize(base);
  return true;
}

}  // namespace plimsoll
