#include "packing/core.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "packing/greedy.h"
#include "packing/repair.h"

namespace plimsoll {
namespace {

/// Up to here an instance is its own core.
constexpr std::size_t kSmall = 250;
/// The sections that a core begins with, at most.
constexpr std::size_t kFirstSections = 100;
/// Tries to place the rest around one answer of the search.
constexpr int kRepairs = 6;

}  // namespace

Core::Core(const Instance& instance, FirstFit& first_fit)
    : instance_(instance), first_fit_(first_fit), best_height_(std::numeric_limits<Bytes>::max()) {}

void Core::ChooseBusiest(Bytes capacity) {
  in_core_.assign(instance_.sections, instance_.sections <= kSmall);
  if (instance_.sections <= kSmall) return;
  std::vector<std::uint32_t> by_load(instance_.sections);
  std::iota(by_load.begin(), by_load.end(), 0u);
  std::stable_sort(by_load.begin(), by_load.end(), [&](std::uint32_t a, std::uint32_t b) {
    return instance_.load[a] > instance_.load[b];
  });
  by_load.resize(kFirstSections);
  for (const std::uint32_t s : by_load) {
    if (instance_.load[s] > capacity - capacity / 8) in_core_[s] = 1;
  }
  in_core_[by_load[0]] = 1;
}

/// The items alive in the core, in items_ with the core's own numbers of sections.
void Core::CollectItems() {
  // before[s]: sections of the core before s.
  std::vector<std::uint32_t> before(instance_.sections + 1, 0);
  for (std::uint32_t s = 0; s < instance_.sections; ++s) {
    before[s + 1] = before[s] + (in_core_[s] ? 1u : 0u);
  }
  sections_ = before.back();
  items_.clear();
  members_.clear();
  for (std::uint32_t i = 0; i < instance_.items.size(); ++i) {
    Item item = instance_.items[i];
    const std::uint32_t first = before[item.first];
    const std::uint32_t end = before[item.last + 1];
    if (first == end) continue;
    item.first = first;
    item.last = end - 1;
    items_.push_back(item);
    members_.push_back({i});
  }
}

void Core::MergeItems() {
  std::vector<std::uint32_t> order(items_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(items_[a].first, items_[a].last) < std::pair(items_[b].first, items_[b].last);
  });
  std::vector<Item> items;
  std::vector<std::vector<std::uint32_t>> members;
  for (const std::uint32_t i : order) {
    const bool joins = !items.empty() && items.back().first == items_[i].first &&
                       items.back().last == items_[i].last && items.back().alignment == 1 &&
                       items_[i].alignment == 1;
    if (joins) {
      items.back().size += items_[i].size;
      members.back().push_back(members_[i].front());
    } else {
      items.push_back(items_[i]);
      members.push_back(members_[i]);
    }
  }
  items_ = std::move(items);
  members_ = std::move(members);
}

SearchResult Core::Solve(Bytes capacity, SameSections same, Effort effort) {
  SearchResult answer;
  ChooseBusiest(capacity);
  while (true) {
    CollectItems();
    if (same == SameSections::kMerged) MergeItems();
    SearchResult found = RunPortfolio(items_, sections_, capacity, effort);
    answer.nodes += found.nodes;
    answer.work += found.work;
    effort.most_nodes -= std::min(effort.most_nodes, found.nodes);
    effort.most_work -= std::min(effort.most_work, found.work);
    answer.outcome = found.outcome;
    if (found.outcome != SearchOutcome::kFound) return answer;
    if (PlaceAround(capacity, found.offsets, effort.deadline)) {
      answer.offsets = best_offsets_;
      return answer;
    }
    if (std::chrono::steady_clock::now() >= effort.deadline || effort.most_nodes == 0 ||
        effort.most_work == 0 || !Grow()) {
      break;
    }
  }
  answer.outcome = SearchOutcome::kGaveUp;
  return answer;
}

/// First fit: the core from the bottom up, so that nothing comes to lie higher than the search put
/// it, unless for a section outside the core; then the rest.
bool Core::PlaceAround(Bytes capacity, const std::vector<Bytes>& core_offsets,
                       std::chrono::steady_clock::time_point deadline) {
  std::vector<std::uint32_t> by_offset(items_.size());
  std::iota(by_offset.begin(), by_offset.end(), 0u);
  std::stable_sort(by_offset.begin(), by_offset.end(), [&](std::uint32_t a, std::uint32_t b) {
    return core_offsets[a] < core_offsets[b];
  });
  std::vector<char> in_core(instance_.items.size(), 0);
  std::vector<std::uint32_t> order;
  too_high_.clear();
  for (const std::uint32_t i : by_offset) {
    for (const std::uint32_t member : members_[i]) {
      order.push_back(member);
      in_core[member] = 1;
    }
  }
  for (const std::uint32_t i : InOrder(instance_, Order::kLargestFirst)) {
    if (!in_core[i]) order.push_back(i);
  }
  Repair repair(instance_, first_fit_, order);
  for (int step = 0; step < kRepairs; ++step) {
    const std::optional<Bytes> height = repair.Step(capacity);
    if (!height) break;
    if (*height < best_height_) {
      best_height_ = *height;
      best_offsets_ = repair.offsets();
    }
    if (*height <= capacity) return true;
    if (step == 0) too_high_ = repair.too_high();
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  return false;
}

/// Adds the busiest section of each item that lies too high. False if there is none to add.
bool Core::Grow() {
  bool grown = false;
  for (const std::uint32_t i : too_high_) {
    const Item& item = instance_.items[i];
    std::uint32_t busiest = instance_.sections;
    for (std::uint32_t s = item.first; s <= item.last; ++s) {
      if (in_core_[s]) continue;
      if (busiest == instance_.sections || instance_.load[s] > instance_.load[busiest]) busiest = s;
    }
    if (busiest == instance_.sections) continue;
    in_core_[busiest] = 1;
    grown = true;
  }
  return grown;
}

}  // namespace plimsoll
