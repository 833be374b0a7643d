#include "cli/terminal/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/printable.h"
#include "cli/command/command.h"
#include "files/output.h"

namespace plimsoll {

namespace {

/// Files are read on several threads, each of which may complain.
std::mutex output_mutex;
CapturedOutput* active_capture = nullptr;

}  // namespace

CapturedOutput::CapturedOutput() {
  const std::lock_guard lock(output_mutex);
  active_capture = this;
}

CapturedOutput::~CapturedOutput() {
  const std::lock_guard lock(output_mutex);
  active_capture = nullptr;
}

/// One line, whatever a file name or a parser's message holds.
void Tell(std::string_view text) {
  const std::string line = fmt::format("plimsoll: {}\n", Printable(text));
  const std::lock_guard lock(output_mutex);
  if (active_capture != nullptr) {
    active_capture->told_ += line;
    return;
  }
  Progress::Hide();
  std::fputs(line.c_str(), stderr);
}

int Complain(const Error& error) {
  Tell(error.ToLine());
  return kUnusable;
}

void Remark(std::string_view text) { Tell(text); }

namespace {

TextStyle StyleOf(int file) {
  TextStyle style;
  const bool terminal = ::isatty(file) == 1;
  const char* no_colour = std::getenv("NO_COLOR");
  style.colour = terminal && (no_colour == nullptr || *no_colour == '\0');
  winsize size{};
  if (terminal && ::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.width = size.ws_col;
  } else if (const char* columns = std::getenv("COLUMNS")) {
    style.width = std::atoi(columns);
  }
  // Longer lines are hard to read, and shorter ones hold no table.
  style.width = std::clamp(style.width, 40, 160);
  return style;
}

}  // namespace

TextStyle StyleOfStdout() { return StyleOf(STDOUT_FILENO); }

TextStyle StyleOfStderr() { return StyleOf(STDERR_FILENO); }

int Print(std::string_view text) {
  {
    const std::lock_guard lock(output_mutex);
    if (active_capture != nullptr) {
      active_capture->printed_ += text;
      return kFine;
    }
  }
  Progress::Hide();
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && written) return kFine;
  return Complain({.message = "the answer could not be written to standard output"});
}

int PrintWithNext(std::string_view text, const std::vector<NextStep>& next) {
  if (Progress::IsSilent()) return Print(text);
  return Print(std::string(text) + NextText(next, StyleOfStdout()));
}

std::optional<Error> CheckOutput(std::string_view flag, const std::optional<std::string>& output,
                                 const std::vector<std::string>& inputs) {
  if (!output || *output == "-") return std::nullopt;
  for (const std::string& input : inputs) {
    if (*output != input && !IsSameFile(*output, input)) continue;
    return Error{.message = fmt::format("{} would overwrite what is read ({})", flag, input),
                 .file = *output,
                 .hint = "name another file"};
  }
  return CheckWritable(*output);
}

int WriteOut(const std::string& path, std::string_view text) {
  if (path == "-") return Print(text);
  const std::optional<Error> error = WriteFile(path, text);
  return error ? Complain(*error) : kFine;
}

}  // namespace plimsoll
