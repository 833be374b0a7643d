// Finds many phrases at once in one pass over the flow of a log (Aho and Corasick's automaton), so
// that a log of hundreds of megabytes costs about a second however many wordings there are.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "readers/error_text/flow.h"

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

  /// Walks one text.
  class Walk {
   public:
    Walk(const PhraseFinder& finder, std::string_view text) : finder_(finder), flow_(text, 0) {}
    std::optional<Hit> Next();

   private:
    const PhraseFinder& finder_;
    Flow flow_;
    std::uint16_t state_ = 0;
    std::size_t count_ = 0;
    std::array<std::size_t, 64> offsets_{};  // of the last characters, to find where a hit begins
  };

 private:
  friend class Walk;
  static constexpr std::uint16_t kNoPhrase = 0xffff;
  struct State {
    std::array<std::uint16_t, 128> next{};
    std::uint16_t fallback = 0;
    std::uint16_t phrase = kNoPhrase;
  };

  void Add(std::string_view phrase, std::uint16_t index);
  void Link();
  void FindPairs();

  std::vector<State> states_;
  std::vector<std::size_t> lengths_;
  std::vector<bool> pairs_;  // with which a phrase may begin: everything else is passed quickly
};

}  // namespace plimsoll
