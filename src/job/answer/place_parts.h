// A line of the user's as a capture spells it, in its parts.
#pragma once

#include <cstdint>
#include <string_view>

namespace plimsoll {

/// "train.py:57 in forward"; a text of another form is all function.
struct PlaceParts {
  std::string_view function;
  std::string_view file = {};
  std::int32_t line = 0;
};

PlaceParts PartsOf(std::string_view where);

}  // namespace plimsoll
