// Three kinds of failure are kept apart. An unusable input is an Error value that says which file,
// where in it and what to do; a bad record inside a usable input is counted and the load goes on
// (timeline/recording.h, Counters); a broken invariant of our own stops the program (check.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace plimsoll {

/// Why an input or a flag cannot be used. Printed as one line.
struct Error {
  std::string message;
  std::string file = {};
  std::optional<std::uint64_t> offset = {};
  /// What the person should do about it; may be empty.
  std::string hint = {};

  /// "run.pickle: offset 812: a list was cut short; record the snapshot again"
  std::string ToLine() const;
};

/// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  Error& error() { return std::get<Error>(state_); }
  const Error& error() const { return std::get<Error>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace plimsoll
