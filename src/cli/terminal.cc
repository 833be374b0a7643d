#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>

#include "base/output.h"
#include "base/printable.h"
#include "cli/command.h"

namespace plimsoll {

int Complain(const Error& error) {
  // One line, whatever a file name or a parser's message holds.
  std::fputs(fmt::format("plimsoll: {}\n", Printable(error.ToLine())).c_str(), stderr);
  return kUnusable;
}

TextStyle StyleOfStdout() {
  TextStyle style;
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const char* no_colour = std::getenv("NO_COLOR");
  style.colour = terminal && (no_colour == nullptr || *no_colour == '\0');
  winsize size{};
  if (terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.width = size.ws_col;
  } else if (const char* columns = std::getenv("COLUMNS")) {
    style.width = std::atoi(columns);
  }
  style.width = std::clamp(style.width, 60, 160);
  return style;
}

struct Progress::State {
  std::string what;
  std::size_t total = 0;
  std::size_t done = 0;
  bool shown = false;
  bool terminal = false;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::mutex mutex;
};

Progress::Progress(std::string what, std::size_t total) : state_(new State) {
  state_->what = std::move(what);
  state_->total = total;
  state_->terminal = ::isatty(STDERR_FILENO) == 1;
}

void Progress::Advance() {
  const std::lock_guard lock(state_->mutex);
  ++state_->done;
  const auto elapsed = std::chrono::steady_clock::now() - state_->started;
  if (!state_->terminal || elapsed < std::chrono::milliseconds(500)) return;
  state_->shown = true;
  fmt::print(stderr, "\r{} {}/{}\033[K", state_->what, state_->done, state_->total);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (state_->shown) fmt::print(stderr, "\r\033[K");
  delete state_;
}

int Print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && written) return kFine;
  return Complain({.message = "the answer could not be written to standard output"});
}

int WriteOut(const std::string& path, std::string_view text) {
  if (path == "-") return Print(text);
  const std::optional<Error> error = WriteFile(path, text);
  return error ? Complain(*error) : kFine;
}

}  // namespace plimsoll
