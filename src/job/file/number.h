// A number of a job: its values at a smaller and at a larger batch. How many points those are is
// known here, and to what puts a number at a batch that is asked about (AtBatch). A job that was
// captured over more than the batch has a form for each (forms.h), and is put at a length first
// (at_length.h): nothing behind that knows of a second dimension.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace plimsoll {

/// Into the forms of a job.
using FormId = std::uint32_t;
inline constexpr FormId kNoForm = 0xffffffffu;

class Number {
 public:
  /// A smaller and a larger batch.
  static constexpr std::size_t kPoints = 2;

  constexpr Number() = default;
  constexpr Number(std::int64_t smaller, std::int64_t larger, FormId form = kNoForm)
      : at_{smaller, larger}, form_(form) {}
  static constexpr Number Always(std::int64_t value) { return {value, value}; }

  /// Whether it is not the same at all of them.
  constexpr bool depends() const { return at_[0] != at_[1]; }
  /// At the smallest of them.
  constexpr std::int64_t least() const { return at_[0]; }
  constexpr std::int64_t at(std::size_t point) const { return at_[point]; }
  /// How much more it is at the larger batch.
  constexpr std::int64_t rise() const { return at_[1] - at_[0]; }
  /// By which it was captured; what is computed from numbers has none.
  constexpr FormId form() const { return form_; }

  /// Whether something is true of it at every point.
  template <typename Is>
  constexpr bool all(const Is& is) const {
    return std::all_of(at_.begin(), at_.end(), is);
  }

  /// `f` of the values at each point.
  template <typename F, typename... Others>
  static constexpr Number Each(const F& f, const Number& n, const Others&... others) {
    return {f(n.at_[0], others.at_[0]...), f(n.at_[1], others.at_[1]...)};
  }

  friend constexpr auto operator<=>(const Number& a, const Number& b) { return a.at_ <=> b.at_; }
  friend constexpr bool operator==(const Number& a, const Number& b) { return a.at_ == b.at_; }

 private:
  std::array<std::int64_t, kPoints> at_{};
  FormId form_ = kNoForm;
};

/// So many parts of it, rounded up, in a way that stays on a line: of what each sample has a share
/// is rounded, too.
constexpr Number CeilShare(const Number& n, std::int64_t parts) {
  const auto up = [&](std::int64_t a) { return a / parts + (a % parts > 0 ? 1 : 0); };
  return {up(n.least()), up(n.least()) + up(n.rise())};
}

}  // namespace plimsoll
