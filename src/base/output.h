// The other side of base/input.h: where whole files are written.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

/// A file that is there whole or not at all. It grows under a name of its own beside the target;
/// Commit puts it there, on disk before it replaces what was there, with its permissions. Without a
/// Commit nothing changes and nothing is left behind. Through a link the file behind it is written;
/// a pipe or a device, or a file in a folder that takes no new ones, is written in place.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  /// After a failure the rest does nothing; Commit tells it.
  void Write(std::string_view bytes);
  /// Nothing, or what went wrong.
  std::optional<Error> Commit();

 private:
  void Fail();
  void OpenInPlace();

  std::string path_;    // as given
  std::string target_;  // behind links
  std::string part_;    // empty: in place
  int file_ = -1;
  int reason_ = 0;  // errno of the first failure
};

/// The same in one call.
std::optional<Error> WriteFile(const std::string& path, std::string_view bytes);

}  // namespace plimsoll
