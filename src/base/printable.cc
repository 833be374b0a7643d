#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <iterator>

namespace plimsoll {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

/// In order. Unicode's categories Cc and Cf, its separators of lines and paragraphs, and the
/// letters that are blank by design.
constexpr std::array kUnseen = {
    CodeRange{0x00, 0x1f},       CodeRange{0x7f, 0x9f},       CodeRange{0xad, 0xad},
    CodeRange{0x34f, 0x34f},     CodeRange{0x600, 0x605},     CodeRange{0x61c, 0x61c},
    CodeRange{0x6dd, 0x6dd},     CodeRange{0x70f, 0x70f},     CodeRange{0x890, 0x891},
    CodeRange{0x8e2, 0x8e2},     CodeRange{0x115f, 0x1160},   CodeRange{0x17b4, 0x17b5},
    CodeRange{0x180b, 0x180f},   CodeRange{0x200b, 0x200f},   CodeRange{0x2028, 0x202e},
    CodeRange{0x2060, 0x206f},   CodeRange{0x2800, 0x2800},   CodeRange{0x3164, 0x3164},
    CodeRange{0xfe00, 0xfe0f},   CodeRange{0xfeff, 0xfeff},   CodeRange{0xffa0, 0xffa0},
    CodeRange{0xfff0, 0xfffb},   CodeRange{0x110bd, 0x110bd}, CodeRange{0x110cd, 0x110cd},
    CodeRange{0x13430, 0x1343f}, CodeRange{0x1bca0, 0x1bca3}, CodeRange{0x1d173, 0x1d17a},
    CodeRange{0xe0000, 0xe0fff}};

bool Unseen(char32_t code) {
  const auto* const range =
      std::lower_bound(kUnseen.begin(), kUnseen.end(), code,
                       [](const CodeRange& r, char32_t c) { return r.last < c; });
  return range != kUnseen.end() && range->first <= code;
}

struct Character {
  char32_t code = 0;
  std::size_t length = 0;  // 0: no UTF-8
};

/// The shortest form only: a longer one hides what it stands for.
Character NextCharacter(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  char32_t code = first & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[length] || code > 0x10ffff || surrogate) return {};
  return {code, length};
}

/// Whether every byte is a plain letter, digit or sign; nearly all texts are.
bool AllPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string Escaped(char32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
  const std::uint32_t rest = static_cast<std::uint32_t>(code) - 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
}

bool LooksLikeANumber(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string Cleaned(std::string_view text, std::string_view kept) {
  if (AllPlain(text)) return std::string(text);
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Character c = NextCharacter(text);
    const bool seen = c.length == 1 && kept.find(text[0]) != std::string_view::npos;
    if (!seen && (c.length == 0 || Unseen(c.code))) {
      clean += '?';
    } else {
      clean += text.substr(0, c.length);
    }
    text.remove_prefix(std::max<std::size_t>(1, c.length));
  }
  return clean;
}

}  // namespace

std::size_t Utf8Length(std::string_view text) {
  return text.empty() ? 0 : NextCharacter(text).length;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Printable(std::string_view text) { return Cleaned(text, ""); }

std::string PrintableLines(std::string_view text) { return Cleaned(text, "\n\t"); }

std::string PrintableJson(std::string json) {
  std::string clean;
  std::string_view text = json;
  std::size_t plain = 0;
  const auto take = [&](std::size_t skipped) {
    clean += text.substr(0, plain);
    text.remove_prefix(plain + skipped);
    plain = 0;
  };
  while (plain < text.size()) {
    const auto byte = static_cast<unsigned char>(text[plain]);
    if (byte < 0x7f) {  // a document's own line breaks too; JSON escapes those inside texts
      ++plain;
      continue;
    }
    const Character c = NextCharacter(text.substr(plain));
    if (c.length == 0 || !Unseen(c.code)) {
      plain += std::max<std::size_t>(1, c.length);
      continue;
    }
    take(c.length);
    clean += Escaped(c.code);
  }
  if (clean.empty()) return json;
  take(0);
  return clean;
}

std::string CsvCell(std::string_view text) {
  const std::string clean = Printable(text);
  std::string cell = "\"";
  const bool formula =
      !clean.empty() && std::string_view("=+-@").find(clean[0]) != std::string_view::npos;
  if (formula && !LooksLikeANumber(clean)) cell += '\'';
  for (const char c : clean) {
    if (c == '"') cell += '"';
    cell += c;
  }
  return cell + '"';
}

}  // namespace plimsoll
