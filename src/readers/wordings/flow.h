// A pasted log as the characters that its writer meant, one after the other.
//
// Blanks and line ends are left out altogether: a terminal that wraps a message after 80 columns
// may break it between any two characters, even inside a number, and then nothing but leaving out
// all of them gives the same text again. Prefixes of continuation lines, ANSI colours, Markdown's
// stars and backticks, the tags of HTML that format text are left out too; HTML entities and the
// escapes of JSON and Markdown are decoded. The place of every character in the input stays known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace plimsoll {

class Flow {
 public:
  static constexpr int kEnd = -1;

  /// Begins at `begin`, which may lie inside a line. With a rank, the lines of other ranks are
  /// skipped: launchers mix the lines of all processes.
  Flow(std::string_view text, std::size_t begin, std::optional<int> rank = {});

  /// The next character, or kEnd.
  int Next() {
    while (position_ < text_.size()) {
      const auto c = static_cast<unsigned char>(text_[position_]);
      if (kKinds[c] == Kind::kPlain) {
        offset_ = position_++;
        return c;
      }
      if (const int special = Special(c); special != kEnd) return special;
    }
    return kEnd;
  }

  /// Moves to the next character that is not left out, across lines of other ranks.
  void SkipBlanks();

  /// Goes on at another place of the text.
  void MoveTo(std::size_t position);

  /// Whether the byte stands for itself.
  static bool IsPlain(unsigned char byte) { return kKinds[byte] == Kind::kPlain; }
  /// Whether the byte is left out wherever it stands and nothing begins with it.
  static bool IsSkipped(unsigned char byte) { return kKinds[byte] == Kind::kSkip; }

  /// Where the character that Next returned begins in the input.
  std::size_t offset() const { return offset_; }
  /// Where the next one is looked for.
  std::size_t position() const { return position_; }
  /// Whether nothing follows, not even a blank.
  bool exhausted() const { return position_ == text_.size(); }

  /// Whether a phrase to be found may leave this character out, as the text does.
  static bool IsNoise(char c) {
    const Kind kind = kKinds[static_cast<unsigned char>(c)];
    return kind == Kind::kSkip || kind == Kind::kNewline;
  }

 private:
  enum class Kind : std::uint8_t {
    kPlain,
    kSkip,
    kNewline,
    kEscape,
    kEntity,
    kTag,
    kBackslash,
    kUnicode
  };
  static const std::array<Kind, 256> kKinds;
  static constexpr std::array<Kind, 256> MakeKinds();

  int Special(unsigned char c);
  int Decoded(std::size_t length, int character);
  int Entity();
  int Tag();
  int Backslash();
  int Unicode();
  int CodePoint(unsigned value, std::size_t length);
  void SkipColour(std::size_t introducer);
  void BeginLine();

  std::string_view text_;
  std::size_t position_ = 0;
  std::size_t offset_ = 0;
  std::size_t line_ = 0;  // where the present line begins
  std::optional<int> rank_;
  int foreign_lines_ = 0;
};

}  // namespace plimsoll
