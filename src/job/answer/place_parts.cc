#include "job/answer/place_parts.h"

#include <charconv>

namespace plimsoll {

PlaceParts PartsOf(std::string_view where) {
  const PlaceParts whole{.function = where};
  constexpr std::string_view kIn = " in ";
  const std::size_t in = where.rfind(kIn);
  if (in == std::string_view::npos) return whole;
  const std::size_t colon = where.substr(0, in).rfind(':');
  if (colon == std::string_view::npos) return whole;
  PlaceParts parts{.function = where.substr(in + kIn.size()), .file = where.substr(0, colon)};
  const char* end = where.data() + in;
  const auto [read_to, error] = std::from_chars(where.data() + colon + 1, end, parts.line);
  return error == std::errc() && read_to == end ? parts : whole;
}

}  // namespace plimsoll
