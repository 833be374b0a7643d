#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/text.h"

namespace plimsoll {
namespace {

struct Unit {
  std::string_view letter;
  double bytes;
};
constexpr std::array<Unit, 5> kUnits = {{{"", 1},
                                         {"k", double(kKiB)},
                                         {"m", double(kMiB)},
                                         {"g", double(kGiB)},
                                         {"t", 1024.0 * double(kGiB)}}};

/// The multiplier that a written unit stands for, or 0 where it is none.
double UnitOf(std::string unit) {
  if (unit == "bytes" || unit == "byte" || unit == "b") return 1;
  if (unit.ends_with("ib")) {
    unit.resize(unit.size() - 2);
  } else if (unit.ends_with("b")) {
    unit.resize(unit.size() - 1);
  } else if (unit.ends_with("i")) {
    return 0;
  }
  for (const Unit& u : kUnits) {
    if (unit == u.letter) return u.bytes;
  }
  return 0;
}

/// "12" may mean bytes or GiB, and who guesses wrong gets a wrong answer.
Error WhichUnit(std::string_view text) {
  return {.message = fmt::format("'{}' has no unit", text),
          .hint = fmt::format("write {0}GiB, {0}MiB or {0}B", text)};
}

}  // namespace

std::string FormatBytes(Bytes n) {
  const std::string sign = n < 0 ? "-" : "";
  const double magnitude = std::fabs(static_cast<double>(n));
  if (magnitude < double(kKiB)) return fmt::format("{} bytes", n);
  if (magnitude < double(kMiB)) return fmt::format("{}{:.2f} KiB", sign, magnitude / double(kKiB));
  if (magnitude < double(kGiB)) return fmt::format("{}{:.2f} MiB", sign, magnitude / double(kMiB));
  return fmt::format("{}{:.2f} GiB", sign, magnitude / double(kGiB));
}

Result<Bytes> ParseBytes(std::string_view text) {
  const Error error{.message = fmt::format("'{}' is not a size", text),
                    .hint = "write it like 20GiB or 512MiB"};
  std::size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.')) {
    ++digits;
  }
  if (digits == 0) return error;
  const std::string number(text.substr(0, digits));
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (end != number.c_str() + number.size()) return error;
  std::size_t unit_at = digits;
  while (unit_at < text.size() && text[unit_at] == ' ') ++unit_at;
  if (unit_at == text.size() && value != 0) return WhichUnit(number);
  const double unit = UnitOf(Lower(text.substr(unit_at)));
  const double bytes = value * unit;
  if (unit == 0 || bytes >= 9.2e18) return error;
  return static_cast<Bytes>(std::llround(bytes));
}

}  // namespace plimsoll
