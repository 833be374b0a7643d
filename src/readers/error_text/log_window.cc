#include "readers/error_text/log_window.h"

#include <algorithm>
#include <vector>

namespace plimsoll {
namespace {

constexpr std::size_t kWindow = 4 << 20;
constexpr std::size_t kReadAtOnce = 1 << 20;
constexpr std::string_view kUtf16Mark = "\xff\xfe";

void AppendUtf8(std::string& out, unsigned unit) {
  if (unit < 0x80) {
    out += static_cast<char>(unit);
  } else if (unit < 0x800) {
    out += static_cast<char>(0xc0 | (unit >> 6));
    out += static_cast<char>(0x80 | (unit & 0x3f));
  } else {
    out += static_cast<char>(0xe0 | (unit >> 12));
    out += static_cast<char>(0x80 | ((unit >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (unit & 0x3f));
  }
}

/// Not of text: what is neither printed, nor moves a cursor or colours.
bool IsControl(char c) {
  return (c >= 0 && c < '\a') || (c > '\r' && c < ' ' && c != '\x1b') || c == '\x7f';
}

}  // namespace

/// A log that is cut while its program writes begins with NULs; a crash leaves some in the middle.
/// Without them, binary formats still have other control characters.
bool LooksLikeText(std::string_view head) {
  if (head.starts_with(kUtf16Mark)) return true;
  constexpr std::size_t kLookedAt = 4096;
  const std::size_t first = head.find_first_not_of('\0');
  if (first == std::string_view::npos) return false;
  const std::string_view start = head.substr(first, kLookedAt);
  const auto nuls = static_cast<std::size_t>(std::ranges::count(start, '\0'));
  const auto controls = static_cast<std::size_t>(std::ranges::count_if(start, IsControl)) - nuls;
  return controls * 50 <= start.size() - nuls;
}

LogWindow::LogWindow(std::string_view whole) : complete_(true) {
  if (whole.starts_with(kUtf16Mark) || whole.find('\0') != std::string_view::npos) {
    Append(whole);
    text_ = buffer_;
  } else {
    text_ = whole;
  }
}

LogWindow::LogWindow(ByteStream& stream, std::string_view head) : stream_(&stream) { Append(head); }

/// PowerShell writes what it redirects as UTF-16.
void LogWindow::Append(std::string_view bytes) {
  if (!begun_ && !bytes.empty()) {
    begun_ = true;
    utf16_ = bytes.starts_with(kUtf16Mark);
    if (utf16_) bytes.remove_prefix(kUtf16Mark.size());
  }
  if (!utf16_) {
    const std::size_t old = buffer_.size();
    buffer_ += bytes;
    buffer_.erase(std::remove(buffer_.begin() + std::ptrdiff_t(old), buffer_.end(), '\0'),
                  buffer_.end());
    return;
  }
  odd_ += bytes;
  for (std::size_t i = 0; i + 1 < odd_.size(); i += 2) {
    AppendUtf8(buffer_, static_cast<unsigned char>(odd_[i]) |
                            static_cast<unsigned>(static_cast<unsigned char>(odd_[i + 1])) << 8);
  }
  odd_.erase(0, odd_.size() / 2 * 2);
}

/// Reads until the window is full or the log ends.
std::optional<Error> LogWindow::Fill() {
  std::string chunk(kReadAtOnce, '\0');
  while (!complete_ && buffer_.size() < kWindow) {
    const Result<std::size_t> n = stream_->Fill(chunk.data(), chunk.size());
    if (!n) return n.error();
    complete_ = *n < chunk.size();
    Append(std::string_view(chunk).substr(0, *n));
  }
  text_ = buffer_;
  return {};
}

/// At a line's begin where there is one, so that no line is looked at in two halves.
void LogWindow::FindEnd() {
  if (complete_) {
    end_ = text_.size();
    return;
  }
  const std::size_t most = text_.size() - kBelow;
  const std::size_t line = text_.substr(0, most).rfind('\n');
  end_ = line == std::string_view::npos || line + 1 <= begin_ ? most : line + 1;
}

Result<bool> LogWindow::Advance() {
  if (started_ && complete_ && end_ == text_.size()) return false;
  started_ = true;
  if (stream_ == nullptr) {
    end_ = text_.size();
    return end_ > 0;
  }
  const std::size_t dropped = end_ > kAbove ? end_ - kAbove : 0;
  buffer_.erase(0, dropped);
  offset_ += dropped;
  begin_ = end_ - dropped;
  if (auto error = Fill()) return *error;
  FindEnd();
  return end_ > begin_;
}

}  // namespace plimsoll
