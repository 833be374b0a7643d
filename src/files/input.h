// The seam to the world of files: whatever is read, is read as one run of bytes from here, so that
// tests and fuzzers need no disk.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/byte_stream.h"

namespace plimsoll {

/// How large a file is. Limits go by `stored`: what whoever sent the file had to send.
struct InputSize {
  std::size_t stored = 0;
  std::size_t unpacked = 0;
};

/// `code`: errno.
Error CannotRead(const std::string& path, int code);

class Input {
 public:
  /// Opens a file ("-" is standard input) and reads all of it; .gz, .xz and .zst are unpacked,
  /// recognised by their content.
  static Result<Input> Open(const std::string& path);

  /// Bytes already in memory, unpacked if they are compressed.
  static Result<Input> FromMemory(std::string name, std::string bytes);

  /// What a stream still has, behind the bytes that were read from it before.
  static Result<Input> FromStream(ByteStream& stream, std::string_view head);

  const std::string& name() const { return name_; }
  std::string_view bytes() const { return bytes_; }
  InputSize size() const { return {.stored = stored_size_, .unpacked = bytes_.size()}; }

 private:
  /// `stored` owns the bytes as they were found.
  static Result<Input> Unpacked(std::string name, std::shared_ptr<const void> owner,
                                std::string_view stored);

  Input(std::string name, std::shared_ptr<const void> owner, std::string_view bytes,
        std::size_t stored_size)
      : name_(std::move(name)),
        owner_(std::move(owner)),
        bytes_(bytes),
        stored_size_(stored_size) {}

  std::string name_;
  std::shared_ptr<const void> owner_;
  std::string_view bytes_;
  std::size_t stored_size_;
};

}  // namespace plimsoll
