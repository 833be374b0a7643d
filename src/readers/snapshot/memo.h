// The pickle machine's memory of what it has seen. Eight bytes an entry, since a file has one for
// every dict, list and string; pages, so that growing copies nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "readers/snapshot/value.h"

namespace plimsoll::snapshot {

class Memo {
 public:
  /// Indices from `most` on are refused: a file of this size cannot need them.
  explicit Memo(std::size_t most) : most_(most) {}

  std::uint64_t size() const { return size_; }
  /// Whether so many more can follow the last.
  bool HasRoom(std::size_t more) const { return size_ + more <= most_; }

  /// Puts it behind the last. Only where there is room.
  void Add(Value value) {
    if (size_ / kPage >= pages_.size()) AddPage();
    pages_[size_ / kPage][size_ % kPage] = EntryOf(value);
    ++size_;
  }
  bool Put(std::uint64_t index, Value value) {
    if (index >= most_) return false;
    while (index / kPage >= pages_.size()) AddPage();
    pages_[index / kPage][index % kPage] = EntryOf(value);
    size_ = std::max(size_, index + 1);
    return true;
  }

  bool Get(std::uint64_t index, Value& value) const {
    if (index >= size_) return false;
    const std::uint64_t entry = pages_[index / kPage][index % kPage];
    const std::uint64_t tag = entry >> 56;
    if ((tag & kSet) == 0) return false;
    value.kind = static_cast<Kind>(tag & kKind);
    value.payload = entry & kPayload;
    if ((tag & kWide) != 0) [[unlikely]]
      value.payload = wide_[value.payload];
    return true;
  }

 private:
  // The top byte of an entry. Pages start as zeros, so an entry that was never put is not kSet.
  static constexpr std::uint64_t kSet = 0x80;
  static constexpr std::uint64_t kWide = 0x40;
  static constexpr std::uint64_t kKind = 0x3f;
  static constexpr std::uint64_t kPayload = kNoMemo;
  static constexpr std::size_t kPage = 1 << 13;

  void AddPage() { pages_.push_back(std::make_unique<std::uint64_t[]>(kPage)); }
  std::uint64_t EntryOf(Value value) {
    std::uint64_t tag = kSet | static_cast<std::uint64_t>(value.kind);
    if (value.payload > kPayload) [[unlikely]] {
      // An integer (or a double) that needs all its bits stands in a table of its own.
      tag |= kWide;
      wide_.push_back(value.payload);
      value.payload = wide_.size() - 1;
    }
    return tag << 56 | value.payload;
  }

  std::size_t most_;
  std::uint64_t size_ = 0;
  std::vector<std::unique_ptr<std::uint64_t[]>> pages_;
  std::vector<std::uint64_t> wide_;
};

}  // namespace plimsoll::snapshot
