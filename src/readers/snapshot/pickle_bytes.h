// The bytes of a pickle as the machine takes them: window by window, checked before they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/byte_window.h"

namespace plimsoll::snapshot {

/// What goes wrong is told with the offset, so the error is kept here too. Each step that can go
/// wrong is false then.
class PickleBytes {
 public:
  explicit PickleBytes(ByteWindow& stream) : stream_(stream) { LookAtWindow(); }

  /// The next opcode; only after Turn.
  std::uint8_t TakeOpcode() { return *at_++; }
  /// Goes on to the next window where little is left of this one: events are read ahead.
  bool Turn() { return at_ < turn_ || TurnWindow(2 * kLookAhead); }

  bool Need(std::size_t n) { return static_cast<std::size_t>(end_ - at_) >= n || More(n); }
  // The following only after Need.
  template <typename T>
  T Take() {
    T v;
    std::memcpy(&v, at_, sizeof v);  // pickles are little-endian, and so are the hosts we build for
    at_ += sizeof v;
    return v;
  }
  std::string_view TakeText(std::size_t length) {
    const std::string_view text(reinterpret_cast<const char*>(at_), length);
    at_ += length;
    return text;
  }

  const std::uint8_t* at() const { return at_; }
  const std::uint8_t* end() const { return end_; }
  /// To a place in [at, end]; to the byte before it, to say where something went wrong.
  void GoTo(const std::uint8_t* place) { at_ = place; }

  bool Fail(std::string message, std::string hint = {});
  const std::optional<Error>& error() const { return error_; }

 private:
  void LookAtWindow();
  /// Goes on to the next window, which holds so many bytes or reaches to the end of the file.
  bool TurnWindow(std::size_t wanted);
  bool More(std::size_t n);
  bool CutShort();
  std::size_t Offset() const { return passed_ + static_cast<std::size_t>(at_ - begin_); }

  static constexpr std::size_t kLookAhead = std::size_t{16} << 10;

  ByteWindow& stream_;
  std::size_t passed_ = 0;  // bytes before the window
  const std::uint8_t* begin_ = nullptr;
  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* turn_ = nullptr;  // from here on it is time for the next window
  const std::uint8_t* end_ = nullptr;
  std::optional<Error> error_;
};

}  // namespace plimsoll::snapshot
