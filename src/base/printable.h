// Text from foreign files, made safe for a terminal, a table and a document.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace plimsoll {

/// The bytes of the character that the text begins with; 0 where that is no UTF-8.
std::size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

/// Each character that could move the cursor, change colours, break the line, turn the order of the
/// letters round or hide among them becomes '?': control characters, Unicode's format characters
/// and blanks without width; so does each byte that is no UTF-8.
std::string Printable(std::string_view text);
/// The same for a text of several lines: line breaks and tabs stay.
std::string PrintableLines(std::string_view text);

/// The same characters in a JSON document as \u escapes, so that it shows them and keeps them.
std::string PrintableJson(std::string json);

/// A quoted cell of a CSV table, printable. A text that a spreadsheet would take for a formula (it
/// begins with = + - @ and is no number) gets an apostrophe in front, as spreadsheets write it.
std::string CsvCell(std::string_view text);

}  // namespace plimsoll
