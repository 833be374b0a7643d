// What the commands share of the terminal: errors, colour, width.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/terminal/progress.h"
#include "report/next_step.h"
#include "report/text.h"

namespace plimsoll {

/// While one of these is there, what the functions below would write is kept: for whoever runs a
/// command and hands its answer on. There is one at a time.
class CapturedOutput {
 public:
  CapturedOutput();
  ~CapturedOutput();
  CapturedOutput(const CapturedOutput&) = delete;

  /// Of Print.
  const std::string& printed() const { return printed_; }
  /// Of Complain and Remark: lines.
  const std::string& told() const { return told_; }

 private:
  friend void Tell(std::string_view line);
  friend int Print(std::string_view text);

  std::string printed_;
  std::string told_;
};

/// Prints one line to standard error and returns the exit code of unusable input.
int Complain(const Error& error);

/// A line of our own on standard error, beside what a job or script says.
void Remark(std::string_view text);

/// Colour and width as each takes them (NO_COLOR and COLUMNS are heeded).
TextStyle StyleOfStdout();
TextStyle StyleOfStderr();

/// Writes to standard output; the exit code says whether that worked.
[[nodiscard]] int Print(std::string_view text);

/// An answer and what to type next, which --quiet leaves out.
[[nodiscard]] int PrintWithNext(std::string_view text, const std::vector<NextStep>& next);

/// Why an output of a command cannot be written, before the work that makes it: it is one of the
/// inputs, by whatever name, or no file can be made there. "-" and nothing are fine.
std::optional<Error> CheckOutput(std::string_view flag, const std::optional<std::string>& output,
                                 const std::vector<std::string>& inputs);

/// Writes a file whole or not at all, "-" to standard output; the exit code says whether that
/// worked.
[[nodiscard]] int WriteOut(const std::string& path, std::string_view text);

}  // namespace plimsoll
