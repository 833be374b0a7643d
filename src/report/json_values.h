// What every JSON document needs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace plimsoll {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& v) {
  return v ? Json(*v) : Json(nullptr);
}

/// Paths and names need not be valid UTF-8.
inline std::string Dump(const Json& document, int indent = 1) {
  return document.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace plimsoll
