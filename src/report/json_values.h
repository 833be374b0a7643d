// What every JSON document needs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/printable.h"

namespace plimsoll {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& v) {
  return v ? Json(*v) : Json(nullptr);
}

/// The document with every text as it may be shown: a browser shows what an escape stands for.
inline Json Shown(Json document) {
  if (document.is_string()) return PrintableLines(document.get_ref<const std::string&>());
  if (document.is_structured()) {
    for (Json& part : document) part = Shown(std::move(part));
  }
  return document;
}

/// Paths and names need not be valid UTF-8, nor be fit for a terminal.
inline std::string Dump(const Json& document, int indent = 1) {
  return PrintableJson(document.dump(indent, ' ', false, Json::error_handler_t::replace)) + "\n";
}

/// The document as whoever reads it back has it: names in it are those of other documents.
inline Json ReadBack(const Json& document) { return Json::parse(Dump(document, -1)); }

}  // namespace plimsoll
