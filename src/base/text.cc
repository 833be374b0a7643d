#include "base/text.h"

namespace plimsoll {

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == kNowhere;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace plimsoll
