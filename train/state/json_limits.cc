#include "train/state/json_limits.h"

namespace plimsoll::train {

bool WithinJsonLimits(std::string_view text, int depth) {
  // A million tensors have as many.
  constexpr std::size_t kMostValues = 10'000'000;
  std::size_t values = 1;
  int open = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (byte == '"') quoted = !quoted;
    if (quoted) {
      if (byte == '\\') ++i;
      continue;
    }
    if (byte == '[' || byte == '{') {
      if (++open > depth) return false;
    } else if (byte == ']' || byte == '}') {
      --open;
    }
    if (byte == '[' || byte == '{' || byte == ',') ++values;
    if (values > kMostValues) return false;
  }
  return true;
}

}  // namespace plimsoll::train
