// Lists of frames that were seen before, found again by the very bytes that spell them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::snapshot {

class SpelledStacks {
 public:
  /// Beyond so many bytes of spellings no more are kept.
  explicit SpelledStacks(std::size_t most_text) : most_text_(most_text) {}

  struct Spelled {
    std::size_t text = 0;  // where its bytes are among the texts
    std::size_t length = 0;
    std::uint64_t stack = 0;
    std::uint32_t next = 0;  // the list that came after it the last time
  };

  /// The list that `bytes` begin with, if it is the one that came after the last one found the last
  /// time that this one was found: a training step is like the one before. So most lists are
  /// compared with one other and not hashed.
  const Spelled* Expected(std::string_view bytes) const {
    if (all_.empty()) return nullptr;
    const Spelled& expected = all_[all_[last_].next];
    return bytes.starts_with(TextOf(expected)) ? &expected : nullptr;
  }
  /// The list that these bytes spell, or nothing.
  const Spelled* Find(std::string_view spelling) const;
  /// What is now known of a spelling that Find did not find; nothing if there is no room for it.
  const Spelled* Add(std::string_view spelling, std::uint64_t stack);
  /// A list was found: what comes next is expected to be what came after it before.
  void Found(const Spelled& spelled) {
    const auto index = static_cast<std::uint32_t>(&spelled - all_.data());
    all_[last_].next = index;
    last_ = index;
  }
  void Clear();

  /// What one of them takes besides its text; the table is never full.
  static constexpr std::size_t kBytesEach = 96;

 private:
  std::string_view TextOf(const Spelled& spelled) const {
    return std::string_view(texts_).substr(spelled.text, spelled.length);
  }
  void Insert(std::uint64_t hash, std::uint32_t index);

  std::size_t most_text_;
  std::string texts_;
  std::vector<Spelled> all_;
  std::uint32_t last_ = 0;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t index = kEmpty;
  };
  static constexpr std::uint32_t kEmpty = 0xffffffffu;
  std::vector<Slot> slots_;  // open addressing; the size is a power of two
};

}  // namespace plimsoll::snapshot
