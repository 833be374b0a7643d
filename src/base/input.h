// The seam to the world of files: whatever is read, is read as one run of bytes from here, so that
// tests and fuzzers need no disk.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

class Input {
 public:
  /// Opens a file ("-" is standard input). A plain file is mapped, not copied; .gz, .xz and .zst
  /// are unpacked, recognised by their content.
  static Result<Input> Open(const std::string& path);

  /// Bytes already in memory, unpacked if they are compressed.
  static Result<Input> FromMemory(std::string name, std::string bytes);

  const std::string& name() const { return name_; }
  std::string_view bytes() const { return bytes_; }

 private:
  Input(std::string name, std::shared_ptr<const void> owner, std::string_view bytes)
      : name_(std::move(name)), owner_(std::move(owner)), bytes_(bytes) {}

  std::string name_;
  std::shared_ptr<const void> owner_;  // the mapping or the buffer
  std::string_view bytes_;
};

}  // namespace plimsoll
