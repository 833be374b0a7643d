// A block of lines that is drawn again in its place on a terminal; elsewhere one block follows
// another.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll {

class Screen {
 public:
  /// Hides the cursor, where standard output is a terminal.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  bool is_terminal() const { return terminal_; }
  /// Lines that do not fit stay away, with a word of how many. False: standard output is gone.
  [[nodiscard]] bool Draw(std::string_view text);
  /// After the window changed its size, or somebody else wrote to it: begin again at the top.
  void Restart();
  /// Shows the cursor again, below the block. The next Draw begins anew.
  void Leave();

 private:
  bool terminal_;
  bool hidden_ = false;
  bool clear_ = false;
  std::size_t lines_ = 0;
};

/// The first lines of the text that fit, where there are more.
std::string FirstLines(std::string_view text, std::size_t most);

}  // namespace plimsoll
