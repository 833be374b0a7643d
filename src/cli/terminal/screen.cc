#include "cli/terminal/screen.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/command/command.h"
#include "cli/terminal/terminal.h"

namespace plimsoll {
namespace {

constexpr const char* kHideCursor = "\x1b[?25l";
constexpr const char* kShowCursor = "\x1b[?25h";
constexpr const char* kClearScreen = "\x1b[H\x1b[2J";
constexpr const char* kClearBelow = "\x1b[J";

std::size_t RowsOfTerminal() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
  return known ? size.ws_row : 24;
}

std::size_t CountLines(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

}  // namespace

std::string FirstLines(std::string_view text, std::size_t most) {
  const std::size_t lines = CountLines(text);
  if (lines <= most || most == 0) return std::string(text);
  std::size_t end = 0;
  for (std::size_t i = 0; i + 1 < most; ++i) end = text.find('\n', end) + 1;
  return fmt::format("{}({} more lines: a taller window shows them)\n", text.substr(0, end),
                     lines - most + 1);
}

Screen::Screen() : terminal_(::isatty(STDOUT_FILENO) == 1) {}

Screen::~Screen() { Leave(); }

bool Screen::Draw(std::string_view text) {
  if (!terminal_) return Print(text) == kFine;
  const std::string shown = FirstLines(text, std::max<std::size_t>(RowsOfTerminal(), 3) - 1);
  std::string out;
  if (!hidden_) out += kHideCursor;
  hidden_ = true;
  if (clear_) {
    out += kClearScreen;
  } else if (lines_ > 0) {
    out += fmt::format("\r\x1b[{}A{}", lines_, kClearBelow);
  }
  clear_ = false;
  lines_ = CountLines(shown);
  return Print(out + shown) == kFine;
}

void Screen::Restart() { clear_ = terminal_; }

void Screen::Leave() {
  lines_ = 0;
  if (!hidden_) return;
  hidden_ = false;
  std::fputs(kShowCursor, stdout);
  std::fflush(stdout);
}

}  // namespace plimsoll
