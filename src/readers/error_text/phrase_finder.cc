#include "readers/error_text/phrase_finder.h"

#include <deque>

#include "base/check.h"

namespace plimsoll {
namespace {

constexpr std::size_t Folded(std::size_t c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; }

}  // namespace

PhraseFinder::PhraseFinder(std::span<const std::string_view> phrases) : states_(1) {
  for (std::size_t i = 0; i < phrases.size(); ++i) {
    Add(phrases[i], static_cast<std::uint16_t>(i));
  }
  FindPairs();
  Link();
}

/// Before Link: the states have only the phrases' own transitions.
void PhraseFinder::FindPairs() {
  pairs_.assign(256 * 256, false);
  for (std::size_t first = 0; first < 256; ++first) {
    const auto byte = static_cast<unsigned char>(first);
    const std::uint16_t state = first < 128 ? states_[0].next[Folded(first)] : std::uint16_t{0};
    if (Flow::IsSkipped(byte) || (Flow::IsPlain(byte) && state == 0)) continue;
    for (std::size_t second = 0; second < 256; ++second) {
      const bool follows = second < 128 && states_[state].next[Folded(second)] != 0;
      const bool hidden = !Flow::IsPlain(static_cast<unsigned char>(second));
      pairs_[first * 256 + second] = !Flow::IsPlain(byte) || follows || hidden;
    }
  }
}

void PhraseFinder::Add(std::string_view phrase, std::uint16_t index) {
  std::uint16_t state = 0;
  std::size_t length = 0;
  for (char c : phrase) {
    if (Flow::IsNoise(c)) continue;
    PLIMSOLL_CHECK(static_cast<unsigned char>(c) < 128);
    const std::size_t folded = Folded(static_cast<unsigned char>(c));
    std::uint16_t next = states_[state].next[folded];
    if (next == 0) {
      next = static_cast<std::uint16_t>(states_.size());
      states_[state].next[folded] = next;
      states_.emplace_back();
    }
    state = next;
    ++length;
  }
  PLIMSOLL_CHECK(length > 0 && length <= 64);
  states_[state].phrase = index;
  lengths_.push_back(length);
}

/// Gives every state a transition for every character, breadth first.
void PhraseFinder::Link() {
  std::deque<std::uint16_t> queue;
  for (std::uint16_t child : states_[0].next) {
    if (child != 0) queue.push_back(child);
  }
  while (!queue.empty()) {
    State& state = states_[queue.front()];
    queue.pop_front();
    const State& fallback = states_[state.fallback];
    if (state.phrase == kNoPhrase) state.phrase = fallback.phrase;
    for (std::size_t c = 0; c < state.next.size(); ++c) {
      if (state.next[c] == 0) {
        state.next[c] = fallback.next[c];
      } else {
        states_[state.next[c]].fallback = fallback.next[c];
        queue.push_back(state.next[c]);
      }
    }
  }
}

std::optional<PhraseFinder::Hit> PhraseFinder::Walk::Next() {
  while (true) {
    if (state_ == 0) flow_.SkipTo(finder_.pairs_);
    const int c = flow_.Next();
    if (c == Flow::kEnd) return {};
    offsets_[count_++ % offsets_.size()] = flow_.offset();
    state_ = c < 128 ? finder_.states_[state_].next[Folded(static_cast<std::size_t>(c))] : 0;
    const std::uint16_t phrase = finder_.states_[state_].phrase;
    if (phrase == kNoPhrase) continue;
    const std::size_t first = count_ - finder_.lengths_[phrase];
    return Hit{phrase, offsets_[first % offsets_.size()], flow_.position()};
  }
}

}  // namespace plimsoll
