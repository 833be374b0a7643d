#include "packing/first_fit.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace plimsoll {

FirstFit::FirstFit(const Instance& instance, const PlacingLimit& limit)
    : instance_(instance), limit_(limit) {
  while (leaves_ < instance.sections) leaves_ *= 2;
  nodes_.resize(2 * std::size_t{leaves_});
  Clear();
}

void FirstFit::Clear() {
  for (Node& node : nodes_) {
    node.throughout.clear();
    node.anywhere.clear();
  }
  offsets_.assign(instance_.items.size(), 0);
}

/// What placed items take that share a section with this one; the node stands for the sections
/// [begin, end). The same bytes may come up more than once.
void FirstFit::Collect(const Item& item, std::size_t node, std::uint32_t begin, std::uint32_t end) {
  if (item.first >= end || item.last < begin) return;
  const bool covered = item.first <= begin && item.last + 1 >= end;
  const Union& taken = covered ? nodes_[node].anywhere : nodes_[node].throughout;
  if (!taken.empty()) collected_.push_back({taken.data(), taken.data() + taken.size()});
  if (covered) return;
  const std::uint32_t middle = (begin + end) / 2;
  Collect(item, 2 * node, begin, middle);
  Collect(item, 2 * node + 1, middle, end);
}

void FirstFit::Enter(std::uint32_t index, std::size_t node, std::uint32_t begin,
                     std::uint32_t end) {
  const Item& item = instance_.items[index];
  if (item.first >= end || item.last < begin) return;
  const Taken taken{offsets_[index], offsets_[index] + item.size};
  Unite(nodes_[node].anywhere, taken);
  if (item.first <= begin && item.last + 1 >= end) {
    Unite(nodes_[node].throughout, taken);
    return;
  }
  const std::uint32_t middle = (begin + end) / 2;
  Enter(index, 2 * node, begin, middle);
  Enter(index, 2 * node + 1, middle, end);
}

void FirstFit::Unite(Union& sorted, Taken taken) {
  const auto first = std::lower_bound(sorted.begin(), sorted.end(), taken.bottom,
                                      [](const Taken& t, Bytes bottom) { return t.top < bottom; });
  auto last = first;
  for (; last != sorted.end() && last->bottom <= taken.top; ++last) {
    taken.bottom = std::min(taken.bottom, last->bottom);
    taken.top = std::max(taken.top, last->top);
  }
  work_ += static_cast<std::uint64_t>(sorted.end() - first) / 8 + 1;  // eight are moved at once
  if (first == last) {
    sorted.insert(first, taken);
  } else {
    *first = taken;
    sorted.erase(first + 1, last);
  }
}

/// Moves up past whatever is in the way until nothing is. Each list is gone through once at most,
/// and none has to be merged with the others.
Bytes FirstFit::LowestOffset(const Item& item) {
  Bytes offset = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (Cursor& cursor : collected_) {
      const Taken* const begin = cursor.next;
      for (; cursor.next != cursor.end && cursor.next->bottom < offset + item.size; ++cursor.next) {
        if (cursor.next->top <= offset) continue;
        offset = AlignUp(cursor.next->top, item.alignment);
        moved = true;
      }
      work_ += static_cast<std::uint64_t>(cursor.next - begin) + 1;
    }
  }
  return offset;
}

Bytes FirstFit::TightestOffset(const Item& item) {
  all_taken_.clear();
  for (const Cursor& cursor : collected_) {
    all_taken_.insert(all_taken_.end(), cursor.next, cursor.end);
  }
  work_ += 8 * all_taken_.size();
  std::sort(all_taken_.begin(), all_taken_.end(),
            [](const Taken& a, const Taken& b) { return a.bottom < b.bottom; });
  Bytes top = 0;
  Bytes best = -1;
  Bytes best_gap = std::numeric_limits<Bytes>::max();
  for (const Taken& taken : all_taken_) {
    const Bytes offset = AlignUp(top, item.alignment);
    if (taken.bottom - offset >= item.size && taken.bottom - top < best_gap) {
      best = offset;
      best_gap = taken.bottom - top;
    }
    top = std::max(top, taken.top);
  }
  return best >= 0 ? best : AlignUp(top, item.alignment);
}

Bytes FirstFit::Place(std::uint32_t index, Fit fit) {
  const Item& item = instance_.items[index];
  collected_.clear();
  Collect(item, 1, 0, leaves_);
  offsets_[index] = fit == Fit::kLowest ? LowestOffset(item) : TightestOffset(item);
  Enter(index, 1, 0, leaves_);
  return offsets_[index];
}

bool FirstFit::LimitReached() const {
  return work_ >= limit_.most_work || std::chrono::steady_clock::now() >= limit_.deadline;
}

std::optional<Bytes> FirstFit::PlaceAll(const std::vector<std::uint32_t>& order, Fit fit) {
  constexpr std::size_t kBetweenLooks = 256;
  Clear();
  Bytes height = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % kBetweenLooks == kBetweenLooks - 1 && LimitReached()) return std::nullopt;
    height = std::max(height, Place(order[i], fit) + instance_.items[order[i]].size);
  }
  return height;
}

}  // namespace plimsoll
