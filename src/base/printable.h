// Text from foreign files, made safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll {

/// Control characters (which could move the cursor, change colours or break a line) become '?'.
inline std::string Printable(std::string_view text) {
  std::string clean(text);
  for (std::size_t i = 0; i < clean.size(); ++i) {
    const auto c = static_cast<unsigned char>(clean[i]);
    if (c < 0x20 || c == 0x7f) clean[i] = '?';
    // U+0080 to U+009F are control characters too, two bytes in UTF-8.
    const bool c1 = c == 0xc2 && i + 1 < clean.size() &&
                    static_cast<unsigned char>(clean[i + 1]) >= 0x80 &&
                    static_cast<unsigned char>(clean[i + 1]) < 0xa0;
    if (c1) clean.replace(i, 2, "??");
  }
  return clean;
}

}  // namespace plimsoll
