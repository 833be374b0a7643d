#include "job/file/step_values.h"

#include <fmt/format.h>

#include <utility>

namespace plimsoll::step_file {

void Refuse(std::string message) { throw Unusable{std::move(message)}; }

std::span<const Json> Array(const Json& object, const char* key) {
  if (!object[key].is_array()) Refuse(fmt::format("no list \"{}\"", key));
  return object[key].items();
}

std::int64_t Int(const Json& value) {
  if (!IsInteger(value)) Refuse("a number is no integer");
  if (!value.integer()) Refuse("a number is too large");
  return *value.integer();
}

Number ReadNumber(const Json& value) {
  if (IsInteger(value)) return {Int(value), Int(value)};
  if (value.is_array() && value.size() == 2) return {Int(value[0]), Int(value[1])};
  Refuse("a number is neither an integer nor a pair");
}

Number ReadCount(const Json& value) {
  const Number number = ReadNumber(value);
  for (std::size_t point = 0; point < Number::kPoints; ++point) {
    const std::int64_t n = number.at(point);
    if (n < 0 || n > kMostElements) Refuse(fmt::format("a size of {}", n));
  }
  return number;
}

}  // namespace plimsoll::step_file
