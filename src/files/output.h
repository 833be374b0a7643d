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
/// only a pipe or a device is written in place. A folder that takes no new files is a failure from
/// the beginning: an old file that is overwritten in place is lost if the program is killed.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  /// What has gone wrong so far.
  std::optional<Error> Problem() const;
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
  int reason_ = 0;        // errno of the first failure
  bool no_part_ = false;  // it was that no file could be made beside the target
};

/// The same in one call.
std::optional<Error> WriteFile(const std::string& path, std::string_view bytes);

/// Whether a file could be written there, before the work that fills it. Changes nothing.
std::optional<Error> CheckWritable(const std::string& path);

/// Whether two paths lead to one file that is there, by whatever names.
bool IsSameFile(const std::string& one, const std::string& other);

}  // namespace plimsoll
