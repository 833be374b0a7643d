// Reads a message piece by piece from the flow of a log.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "readers/wordings/flow.h"

namespace plimsoll {

class Scanner {
 public:
  Scanner(std::string_view text, std::size_t begin, std::optional<int> rank = {})
      : text_(text), flow_(text, begin, rank) {}

  /// Consumes the phrase if it comes next. Neither blanks nor case matter.
  bool Literal(std::string_view phrase);
  /// The first of the phrases that comes next.
  bool AnyOf(std::initializer_list<std::string_view> phrases);
  /// Consumes everything up to and with the phrase if it comes within `reach` characters.
  bool SkipPast(std::string_view phrase, std::size_t reach);

  /// "15.78 GiB", "1.25GiB", "34.82G", "512 bytes", "25,600,000 bytes". True where a size stands
  /// there; `size` stays empty if it is beyond all reason (17179869184.00 GiB is 2^64: a driver
  /// that would not say).
  bool Size(std::optional<Bytes>& size);
  /// "536870912", without a unit. A number at the very end of the text may have lost digits:
  /// none.
  std::optional<std::int64_t> Integer();
  /// The characters up to (not with) the first of `stops`; at most `most`.
  std::string Until(std::string_view stops, std::size_t most = 4096);

  /// Passes over one character; false at the end.
  bool Skip();
  /// The input behind the last consumed character, as it is, at most so many bytes.
  std::string_view Ahead(std::size_t most) const { return text_.substr(position(), most); }
  /// Whether the line ends here, but for blanks and marks that end a sentence or a quotation.
  bool AtLineEnd() const;
  /// Whether something failed because the text ended in the middle of it.
  bool ended() const { return ended_; }
  /// Where the last consumed character ends in the input.
  std::size_t position() const { return flow_.position(); }

 private:
  int Peek() const { return Probe().Next(); }
  /// A flow at the next character. What lies before it is skipped once for all phrases that are
  /// tried there: it may be a hundred lines of other ranks.
  Flow Probe() const;
  bool Unit(Bytes& factor);
  bool Exactly(std::string_view unit);
  std::string Number();

  std::string_view text_;
  Flow flow_;
  mutable Flow probe_ = flow_;
  mutable std::size_t probed_from_ = std::string_view::npos;
  bool ended_ = false;
};

}  // namespace plimsoll
