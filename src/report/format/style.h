#pragma once

namespace plimsoll {

/// How a text is to look on the terminal that will show it.
struct TextStyle {
  bool colour = false;
  int width = 100;
};

}  // namespace plimsoll
