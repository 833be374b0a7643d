// A log of any length, seen through a window of a few megabytes: what is looked for stands close
// together, so that nothing else has to be kept.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/byte_stream.h"

namespace plimsoll {

/// A log is text: no zero byte in its first 4 KiB, unless it is Windows' UTF-16.
bool LooksLikeText(std::string_view head);

class LogWindow {
 public:
  /// How much in front of a place and behind it may be looked at: a traceback above a message, a
  /// table of buffers below it.
  static constexpr std::size_t kAbove = 40 << 10;
  static constexpr std::size_t kBelow = 128 << 10;

  /// A text that is in memory as a whole.
  explicit LogWindow(std::string_view whole);
  /// `head` was read from the stream before.
  LogWindow(ByteStream& stream, std::string_view head);

  LogWindow(const LogWindow&) = delete;
  LogWindow& operator=(const LogWindow&) = delete;

  /// What the window shows, in UTF-8, and where in the log that begins.
  std::string_view text() const { return text_; }
  std::size_t offset() const { return offset_; }
  /// Places of text() from begin() to end() are to be looked at now; each place once.
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }

  /// Moves on: to the first places at first, then to those behind what was to be looked at. False
  /// at the end of the log.
  Result<bool> Advance();

 private:
  std::optional<Error> Fill();
  void Append(std::string_view bytes);
  void FindEnd();

  ByteStream* stream_ = nullptr;
  std::string buffer_;
  std::string_view text_;
  std::size_t offset_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool started_ = false;
  bool complete_ = false;  // nothing follows
  bool begun_ = false;     // some of the log has been read
  bool utf16_ = false;
  std::string odd_;  // the first half of a UTF-16 unit
};

}  // namespace plimsoll
