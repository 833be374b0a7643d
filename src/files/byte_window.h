// The bytes of a file, one window after the other, for a reader that goes through the file once,
// from its beginning to its end. What the reader has left behind takes no memory: `explain` of a
// snapshot needs a third of the file's size and not 1.2 times it. The next piece is read in another
// thread while the reader works on this one, which is a tenth of what `explain` has to do.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/input.h"

namespace plimsoll {

class ByteWindow {
 public:
  /// Bytes in memory, which must outlive the stream: one window holds all of them.
  explicit ByteWindow(const Input& input);
  /// A plain file; nothing where `path` is something else or cannot be read (Input::Open has the
  /// words for it).
  static std::optional<ByteWindow> OfFile(const std::string& path);

  const std::string& name() const { return name_; }
  InputSize size() const { return size_; }
  std::string_view window() const { return window_; }
  /// Whether the file ends where the window ends.
  bool IsLast() const { return unread_ == 0; }
  /// Lets go of the window's first `done` bytes and reads on, until the window holds `wanted` bytes
  /// or the file ends. No view of the window stays valid.
  std::optional<Error> Advance(std::size_t done, std::size_t wanted);

 private:
  struct Piece {
    std::unique_ptr<char[]> memory;  // room for what the reader has left of the window, then `size`
    std::size_t room = 0;
    std::size_t size = 0;
    int error = 0;
  };

  ByteWindow(std::string name, int fd, std::size_t size);
  static Piece Fill(int fd, Piece piece, std::size_t wanted);
  void Show(Piece next);

  std::string name_;
  InputSize size_;
  std::string_view window_;
  std::shared_ptr<const int> file_;
  std::size_t unread_ = 0;  // bytes of the file behind the window
  Piece current_;           // holds the window
  Piece spare_;
  std::future<Piece> ahead_;  // last, so that it ends before what it uses
};

}  // namespace plimsoll
