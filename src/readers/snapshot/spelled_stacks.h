// Lists of frames that were seen before, found again by the very bytes that spell them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace plimsoll::snapshot {

class SpelledStacks {
 public:
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  /// The stack that these bytes spelled before, or kUnknown; `hash` is HashBytes of them.
  std::uint64_t Find(std::uint64_t hash, std::string_view spelling) const;
  void Add(std::uint64_t hash, std::string_view spelling, std::uint64_t stack);
  void Clear();

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::string_view spelling;
    std::uint64_t stack = 0;
  };
  void Insert(const Entry& entry);

  std::vector<Entry> entries_;  // open addressing; the size is a power of two
  std::size_t count_ = 0;
};

}  // namespace plimsoll::snapshot
