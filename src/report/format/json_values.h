// What every JSON document of a report needs.
#pragma once

#include <string>

#include "base/printable.h"
#include "files/json.h"

namespace plimsoll {

/// The document with every text as it may be shown: a browser shows what an escape stands for.
inline Json Shown(Json document) {
  if (document.is_text()) return PrintableLines(*document.text());
  for (Json& item : document.items()) item = Shown(std::move(item));
  for (auto& [name, value] : document.members()) value = Shown(std::move(value));
  return document;
}

inline constexpr std::optional<int> kOneLine;

/// Paths and names need not be fit for a terminal.
inline std::string Dump(const Json& document, std::optional<int> indent = 1) {
  return PrintableJson(WriteJson(document, indent)) + "\n";
}

/// The document as whoever reads it back has it: names in it are those of other documents.
inline Json ReadBack(const Json& document) { return ParseOwnJson(WriteJson(document)); }

}  // namespace plimsoll
