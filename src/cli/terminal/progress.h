// One line on the terminal that says what is being done, for anything that takes over half a
// second. The only one in the program: where several things go on at once, the latest is shown.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace plimsoll {

/// "replaying settings 12/65, 3 s". Silent unless standard error is a terminal.
class Progress {
 public:
  /// With a total, finished pieces are counted.
  explicit Progress(std::string what, std::size_t total = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One piece is finished. From any thread.
  void Advance();
  /// What comes next is something else.
  void Next(std::string what, std::size_t total = 0);

  /// Takes the line away, so that something can be printed; it comes back by itself.
  static void Hide();
  /// Never shows anything from now on.
  static void Silence(bool silent);
  static bool IsSilent();

 private:
  struct Task;
  friend class ProgressLine;
  std::unique_ptr<Task> task_;
};

}  // namespace plimsoll
