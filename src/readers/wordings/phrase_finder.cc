#include "readers/wordings/phrase_finder.h"

#include <deque>
#include <set>

#include "base/check.h"

namespace plimsoll {
namespace {

constexpr std::size_t Folded(std::size_t c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; }

}  // namespace

PhraseFinder::PhraseFinder(std::span<const std::string_view> phrases) {
  Classify(phrases);
  next_.assign(kClasses, 0);
  phrase_.assign(1, kNoPhrase);
  for (std::size_t i = 0; i < phrases.size(); ++i) {
    Add(phrases[i], static_cast<std::uint16_t>(i));
  }
  // Outside of a phrase, line ends and what stands in front of lines do not matter, nor do colours
  // and escapes: a phrase begins behind them. Only the bracket of a tag may be a phrase's own.
  for (std::size_t c = 0; c < kClasses; ++c) follows_[kMarkup * kClasses + c] = ~ClassSet{0};
  Link();
}

/// A class for each character that a phrase has; both cases share one.
void PhraseFinder::Classify(std::span<const std::string_view> phrases) {
  std::size_t used = kMarkup + 1;
  for (std::string_view phrase : phrases) {
    for (char each : phrase) {
      const auto c = static_cast<unsigned char>(each);
      if (Flow::IsNoise(each)) continue;
      PLIMSOLL_CHECK(c < 128);
      std::uint8_t& folded = class_[Folded(c)];
      if (folded == kOther) folded = static_cast<std::uint8_t>(used++);
    }
  }
  PLIMSOLL_CHECK(used <= kClasses);
  for (std::size_t c = 'A'; c <= 'Z'; ++c) class_[c] = class_[Folded(c)];
  for (std::size_t c = 0; c < 256; ++c) {
    const auto byte = static_cast<unsigned char>(c);
    class_of_byte_[c] = Flow::IsSkipped(byte)  ? kNoise
                        : c == '<' || c == '&' ? kMarkup
                        : !Flow::IsPlain(byte) ? kSpecial
                        : c < 128              ? class_[c]
                                               : kOther;
  }
}

void PhraseFinder::Add(std::string_view phrase, std::uint16_t index) {
  std::vector<std::uint8_t> classes;
  for (char each : phrase) {
    if (!Flow::IsNoise(each)) classes.push_back(class_[Folded(static_cast<unsigned char>(each))]);
  }
  PLIMSOLL_CHECK(classes.size() > 1 && classes.size() <= 64);
  std::uint32_t state = 0;
  for (const std::uint8_t c : classes) {
    std::uint32_t next = Next(state, c);
    if (next == 0) {
      next = static_cast<std::uint32_t>(next_.size());
      Next(state, c) = next;
      next_.resize(next_.size() + kClasses, 0);
      phrase_.push_back(kNoPhrase);
    }
    state = next;
  }
  phrase_[state / kClasses] = index;
  lengths_.push_back(classes.size());
  NoteBeginning(classes);
}

/// Between any two characters there may be bytes that are left out.
void PhraseFinder::NoteBeginning(const std::vector<std::uint8_t>& classes) {
  constexpr ClassSet kAny = ~ClassSet{0};
  constexpr ClassSet kBetween =
      ClassSet{1} << kNoise | ClassSet{1} << kSpecial | ClassSet{1} << kMarkup;
  const auto set_of = [&](std::size_t i) {
    return i < classes.size() ? ClassSet{1} << classes[i] | kBetween : kAny;
  };
  ClassSet* const row = &follows_[classes[0] * kClasses];
  row[classes[1]] |= set_of(2);
  row[kNoise] |= set_of(1);
  row[kSpecial] = kAny;
  row[kMarkup] = kAny;
}

/// Gives every state a transition for every class, breadth first. Noise leaves the state as it is.
void PhraseFinder::Link() {
  std::vector<std::uint32_t> fallback(phrase_.size(), 0);
  std::deque<std::uint32_t> queue;
  for (std::size_t c = 0; c < kClasses; ++c) {
    if (next_[c] != 0) queue.push_back(next_[c]);
  }
  const std::set<std::uint32_t> singles(queue.begin(), queue.end());
  while (!queue.empty()) {
    const std::uint32_t state = queue.front();
    queue.pop_front();
    const std::uint32_t shorter = fallback[state / kClasses];
    std::uint16_t& phrase = phrase_[state / kClasses];
    if (phrase == kNoPhrase) phrase = phrase_[shorter / kClasses];
    for (std::size_t c = 0; c < kClasses; ++c) {
      std::uint32_t& next = next_[state + c];
      if (next == 0) {
        next = next_[shorter + c];
      } else {
        fallback[next / kClasses] = next_[shorter + c];
        queue.push_back(next);
      }
    }
  }
  for (std::size_t i = kClasses; i < next_.size(); ++i) {
    if (singles.contains(next_[i])) next_[i] = 0;
  }
}

void PhraseFinder::Walk::SkipToPhrase() {
  if (text_.size() - at_ < 3) return;
  const auto class_at = [&](std::size_t at) {
    return finder_.class_of_byte_[static_cast<unsigned char>(text_[at])];
  };
  std::size_t pair = class_at(at_) * kClasses + class_at(at_ + 1);
  for (std::size_t at = at_ + 2; at < text_.size(); ++at) {
    const std::size_t third = class_at(at);
    if ((finder_.follows_[pair] >> third & 1) != 0) {
      at_ = at - 2;
      return;
    }
    pair = (pair * kClasses + third) % (kClasses * kClasses);
  }
  at_ = text_.size() - 2;
}

std::optional<std::uint8_t> PhraseFinder::Walk::ReadSpecial() {
  flow_.MoveTo(at_);
  const int c = flow_.Next();
  at_ = flow_.position();
  offset_ = flow_.offset();
  if (c == Flow::kEnd) return {};
  return c < 128 ? finder_.class_[static_cast<std::size_t>(c)] : kOther;
}

std::optional<PhraseFinder::Hit> PhraseFinder::Walk::Next() {
  while (true) {
    const bool begins = state_ == 0;
    if (begins) SkipToPhrase();
    if (at_ >= text_.size()) return {};
    std::uint8_t kind = finder_.class_of_byte_[static_cast<unsigned char>(text_[at_])];
    if (kind == kSpecial || kind == kMarkup) {
      const std::optional<std::uint8_t> special = ReadSpecial();
      if (!special) return {};
      kind = *special;
    } else {
      offset_ = at_++;
      if (kind == kNoise) continue;
    }
    state_ = finder_.next_[state_ + kind];
    if (state_ == 0) {
      if (!begins) at_ = offset_;
      continue;
    }
    offsets_[count_++ % offsets_.size()] = offset_;
    const std::uint16_t phrase = finder_.phrase_[state_ / kClasses];
    if (phrase != kNoPhrase) return Hit{phrase, BeginOf(phrase), at_};
  }
}

}  // namespace plimsoll
