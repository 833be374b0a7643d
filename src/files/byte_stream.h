// The bytes of a file or of standard input one after the other, unpacked: for what is too long to
// be held whole.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/unpack.h"

namespace plimsoll {

/// A file that was opened to be read, or standard input.
struct OpenedFile {
  int descriptor = -1;
  /// None for pipes.
  std::optional<std::size_t> size;
};
/// "-" is standard input. Refuses folders, devices, pipes that nobody writes to, and files that the
/// system makes up as they are read (/proc).
Result<OpenedFile> OpenToRead(const std::string& path);
/// Up to `room` bytes; 0 at the end.
Result<std::size_t> ReadSome(const std::string& name, int descriptor, char* into, std::size_t room);
/// Of a packed stream that is refused.
Error UnpacksToTooMuch(const std::string& name, std::size_t most);

class ByteStream {
 public:
  static Result<ByteStream> Open(const std::string& path);

  const std::string& name() const { return name_; }
  /// Whether the file can be opened again and has the same bytes then: not so with a pipe.
  bool IsFile() const { return size_.has_value(); }
  /// How many bytes of the file itself have been read.
  std::size_t stored() const { return stored_; }

  /// Up to `room` bytes, as many as there are; fewer only at the end.
  Result<std::size_t> Fill(char* into, std::size_t room);

 private:
  struct Closer {
    void operator()(const int* descriptor) const;
  };

  ByteStream(std::string name, OpenedFile file);

  std::optional<Error> ReadOn();
  std::optional<Error> CheckAmount() const;

  std::string name_;
  std::unique_ptr<const int, Closer> file_;
  std::optional<std::size_t> size_;
  std::optional<Unpacker> unpacker_;
  std::unique_ptr<char[]> packed_;  // what was read and is not yet unpacked
  std::string_view waiting_;
  bool last_ = false;   // nothing follows what waits
  bool ended_ = false;  // nothing follows what was unpacked
  std::size_t stored_ = 0;
  std::size_t made_ = 0;
};

}  // namespace plimsoll
