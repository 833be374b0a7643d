// How options are refused.
#pragma once

#include <sstream>
#include <stdexcept>

namespace plimsoll::train {

/// Throws std::invalid_argument with one sentence, made of the parts, unless it is good.
template <class... Parts>
void Require(bool good, const Parts&... parts) {
  if (good) return;
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::invalid_argument(sentence.str());
}

}  // namespace plimsoll::train
