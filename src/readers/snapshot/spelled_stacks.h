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
  };

  /// The list that `bytes` begin with, if it is the one that came the last time after the three
  /// before it: a training step is like the step before. So nine lists of ten are compared with
  /// one other and not hashed.
  const Spelled* Expected(std::string_view bytes) const {
    const std::uint32_t index = followers_[ContextOf(recent_)];
    if (index >= all_.size()) return nullptr;
    return bytes.starts_with(TextOf(all_[index])) ? &all_[index] : nullptr;
  }
  /// The list that these bytes spell, or nothing.
  const Spelled* Find(std::string_view spelling) const;
  /// What is now known of a spelling that Find did not find; nothing if there is no room for it.
  const Spelled* Add(std::string_view spelling, std::uint64_t stack);
  /// This list came next.
  void Found(const Spelled& spelled) {
    const auto index = static_cast<std::uint32_t>(&spelled - all_.data());
    followers_[ContextOf(recent_)] = index;
    recent_ = recent_ << 21 | index;
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
  /// A slot of the table below; two that fall into one are mistaken for one another, no more.
  static std::size_t ContextOf(std::uint64_t recent) {
    return static_cast<std::size_t>(recent * 0x9e3779b97f4a7c15u >> (64 - kContextBits));
  }
  static constexpr unsigned kContextBits = 16;
  std::vector<std::uint32_t> followers_ = std::vector<std::uint32_t>(1u << kContextBits);
  std::uint64_t recent_ = 0;  // the last three
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t index = kEmpty;
  };
  static constexpr std::uint32_t kEmpty = 0xffffffffu;
  std::vector<Slot> slots_;  // open addressing; the size is a power of two
};

}  // namespace plimsoll::snapshot
