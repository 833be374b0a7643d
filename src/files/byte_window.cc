#include "files/byte_window.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace plimsoll {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;
/// What is left of a window is copied in front of the next piece; there is room for so much.
constexpr std::size_t kRoomBefore = std::size_t{64} << 10;

}  // namespace

ByteWindow::ByteWindow(const Input& input)
    : name_(input.name()), size_(input.size()), window_(input.bytes()) {}

ByteWindow::ByteWindow(std::string name, int fd, std::size_t size)
    : name_(std::move(name)),
      size_{.stored = size, .unpacked = size},
      file_(new int(fd),
            [](const int* open) {
              ::close(*open);
              delete open;
            }),
      unread_(size) {}

std::optional<ByteWindow> ByteWindow::OfFile(const std::string& path) {
  if (path == "-") return std::nullopt;  // standard input
  struct stat info {};
  // Asked before the file is opened: to open and close a pipe is to end it for who writes to it.
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  ByteWindow stream(path, fd, static_cast<std::size_t>(info.st_size));
  // A first look, to recognise the file by: it may be something else.
  const std::size_t first = std::min(stream.unread_, kRoomBefore);
  Piece piece = Fill(fd, {}, first);
  if (piece.size == 0) return std::nullopt;
  stream.unread_ = piece.size < first ? 0 : stream.unread_ - first;
  stream.Show(std::move(piece));
  return stream;
}

ByteWindow::Piece ByteWindow::Fill(int fd, Piece piece, std::size_t wanted) {
  if (piece.room < wanted) {
    piece.memory = std::make_unique_for_overwrite<char[]>(kRoomBefore + wanted);
    piece.room = wanted;
  }
  piece.size = 0;
  while (piece.size < wanted) {
    char* const to = piece.memory.get() + kRoomBefore + piece.size;
    const ssize_t n = ::read(fd, to, wanted - piece.size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) piece.error = errno;
    if (n <= 0) break;
    piece.size += static_cast<std::size_t>(n);
  }
  return piece;
}

/// The window becomes what is left of it and `next`.
void ByteWindow::Show(Piece next) {
  if (window_.size() > kRoomBefore) {
    // Only a text that is longer than that leaves so much.
    const std::size_t both = window_.size() + next.size;
    Piece joined{.memory = std::make_unique_for_overwrite<char[]>(kRoomBefore + both),
                 .room = both,
                 .size = both};
    char* const begin = joined.memory.get() + kRoomBefore;
    std::ranges::copy(window_, begin);  // memcpy would not take the null of an empty one
    std::memcpy(begin + window_.size(), next.memory.get() + kRoomBefore, next.size);
    window_ = {begin, both};
    next = std::move(joined);
  } else {
    char* const begin = next.memory.get() + kRoomBefore - window_.size();
    std::ranges::copy(window_, begin);
    window_ = {begin, window_.size() + next.size};
  }
  spare_ = std::exchange(current_, std::move(next));
  if (spare_.room > kPiece) spare_ = {};
}

std::optional<Error> ByteWindow::Advance(std::size_t done, std::size_t wanted) {
  window_.remove_prefix(done);
  while (window_.size() < wanted && !IsLast()) {
    const std::size_t more = std::min(unread_, std::max(kPiece, wanted - window_.size()));
    const std::size_t asked = ahead_.valid() ? std::min(unread_, kPiece) : more;
    Piece next = ahead_.valid() ? ahead_.get() : Fill(*file_, std::move(spare_), asked);
    unread_ = next.size < asked ? 0 : unread_ - asked;  // less: the file was cut short meanwhile
    if (next.error != 0) return CannotRead(name_, next.error);
    Show(std::move(next));
  }
  if (!IsLast() && !ahead_.valid()) {
    ahead_ = std::async(
        [fd = *file_, piece = std::move(spare_), asked = std::min(unread_, kPiece)]() mutable {
          return Fill(fd, std::move(piece), asked);
        });
  }
  return std::nullopt;
}

}  // namespace plimsoll
