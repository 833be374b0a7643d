#include "base/result.h"

#include <fmt/format.h>

namespace plimsoll {

std::string Error::ToLine() const {
  std::string line;
  if (!file.empty()) line += file + ": ";
  if (offset) line += fmt::format("offset {}: ", *offset);
  line += message;
  if (!hint.empty()) line += "; " + hint;
  return line;
}

}  // namespace plimsoll
