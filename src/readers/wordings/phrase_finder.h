// Finds many phrases at once in one pass over the flow of a log, so that a log of gigabytes costs
// seconds however many wordings there are: three bytes show nearly everywhere that no phrase begins
// with them; where one may, Aho and Corasick's automaton reads on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "readers/wordings/flow.h"

namespace plimsoll {

class PhraseFinder {
 public:
  struct Hit {
    std::size_t phrase = 0;  // index of the phrase; the longest that ends here
    std::size_t begin = 0;   // offsets in the input
    std::size_t end = 0;
  };

  /// Phrases of at most 64 characters, blanks not counted, in any case.
  explicit PhraseFinder(std::span<const std::string_view> phrases);

  /// Walks one text from `begin` on.
  class Walk {
   public:
    Walk(const PhraseFinder& finder, std::string_view text, std::size_t begin = 0)
        : finder_(finder), text_(text), at_(begin), flow_(text, begin) {}
    std::optional<Hit> Next();
    /// How far it has come.
    std::size_t position() const { return at_; }
    /// Where another phrase begins that ends where the last hit does.
    std::size_t BeginOf(std::size_t phrase) const {
      return offsets_[(count_ - finder_.lengths_[phrase]) % offsets_.size()];
    }

   private:
    /// Passes over bytes with which no phrase begins.
    void SkipToPhrase();
    /// The class of the next character, which ends at `at_`; none at the end of the text.
    std::optional<std::uint8_t> ReadSpecial();

    const PhraseFinder& finder_;
    std::string_view text_;
    std::size_t at_;
    Flow flow_;  // for bytes that do not stand for themselves
    std::size_t offset_ = 0;
    std::uint32_t state_ = 0;
    std::size_t count_ = 0;
    std::array<std::size_t, 64> offsets_{};  // of the last characters, to find where a hit begins
  };

 private:
  friend class Walk;
  static constexpr std::uint16_t kNoPhrase = 0xffff;
  /// Characters of no phrase; bytes that are left out; bytes that only Flow can read, and those of
  /// them with which a phrase may begin.
  static constexpr std::uint8_t kOther = 0;
  static constexpr std::uint8_t kNoise = 1;
  static constexpr std::uint8_t kSpecial = 2;
  static constexpr std::uint8_t kMarkup = 3;
  static constexpr std::size_t kClasses = 64;
  using ClassSet = std::uint64_t;

  void Classify(std::span<const std::string_view> phrases);
  void Add(std::string_view phrase, std::uint16_t index);
  void NoteBeginning(const std::vector<std::uint8_t>& classes);
  void Link();
  std::uint32_t& Next(std::uint32_t state, std::uint8_t c) { return next_[state + c]; }

  /// A state is the index of its row in `next_`, so that a step is one addition and one load. No
  /// state is of a single character: there the automaton begins anew, with that character.
  std::vector<std::uint32_t> next_;
  std::vector<std::uint16_t> phrase_;              // by row
  std::array<std::uint8_t, 128> class_{};          // of a character
  std::array<std::uint8_t, 256> class_of_byte_{};  // the same, or that it is noise or special
  /// By the classes of two bytes, what may follow where a phrase begins with them.
  std::array<ClassSet, kClasses * kClasses> follows_{};
  std::vector<std::size_t> lengths_;
};

}  // namespace plimsoll
