// Places items one after the other, each where it fits among those placed before it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "packing/instance.h"

namespace plimsoll {

enum class Fit {
  /// The lowest gap that is large enough.
  kLowest,
  /// The smallest gap that is large enough, the lowest of those.
  kTightest,
};

/// When placing has to end, done or not.
struct PlacingLimit {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  /// Intervals looked at or moved, by one FirstFit since it was made.
  std::uint64_t most_work = ~std::uint64_t{0};
};

/// Items of one instance, to be placed again and again in different orders.
class FirstFit {
 public:
  explicit FirstFit(const Instance& instance, const PlacingLimit& limit = {});

  /// Forgets every placement.
  void Clear();
  /// Places the item and returns its offset.
  Bytes Place(std::uint32_t index, Fit fit);
  /// Clears, then places all items in that order; returns the height. Nothing, and some items not
  /// placed, where the limit came first.
  std::optional<Bytes> PlaceAll(const std::vector<std::uint32_t>& order, Fit fit);
  std::uint64_t work() const { return work_; }

  const std::vector<Bytes>& offsets() const { return offsets_; }

 private:
  struct Taken {
    Bytes bottom;
    Bytes top;
  };
  /// Sorted, neither overlapping nor touching: thousands of items make few intervals.
  using Union = std::vector<Taken>;
  /// A node of a binary tree over runs of sections.
  struct Node {
    /// By items that live throughout the node's sections, but not throughout its parent's.
    Union throughout;
    /// By items that live in some of the node's sections, but not throughout its parent's.
    Union anywhere;
  };

  void Collect(const Item& item, std::size_t node, std::uint32_t begin, std::uint32_t end);
  void Enter(std::uint32_t index, std::size_t node, std::uint32_t begin, std::uint32_t end);
  Bytes LowestOffset(const Item& item);
  Bytes TightestOffset(const Item& item);
  void Unite(Union& sorted, Taken taken);
  bool LimitReached() const;

  const Instance& instance_;
  const PlacingLimit limit_;
  std::uint64_t work_ = 0;
  std::vector<Bytes> offsets_;
  /// The root is nodes_[1]; the leaves are single sections.
  std::vector<Node> nodes_;
  std::uint32_t leaves_ = 1;
  /// A union that is being gone through.
  struct Cursor {
    const Taken* next;
    const Taken* end;
  };
  std::vector<Cursor> collected_;
  std::vector<Taken> all_taken_;
};

}  // namespace plimsoll
