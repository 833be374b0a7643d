#include "cli/allowance.h"

#include <fmt/format.h>

#include <charconv>

namespace plimsoll {

bool Allowance::Allows(const Change& peak) const {
  if (bytes) return peak.growth() <= *bytes;
  return static_cast<double>(peak.growth()) <= part * static_cast<double>(peak.before);
}

std::optional<Error> ReadAllowance(const std::string& text, std::optional<Allowance>& to) {
  constexpr double kMostPercent = 1e6;
  if (!text.ends_with('%')) {
    const Result<Bytes> bytes = ParseBytes(text);
    if (!bytes) return bytes.error();
    to = Allowance{.text = FormatBytes(*bytes), .bytes = *bytes};
    return std::nullopt;
  }
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto parsed = std::from_chars(text.data(), end, percent);
  const bool good = parsed.ec == std::errc() && parsed.ptr == end && percent >= 0;
  if (!good || percent > kMostPercent) {
    return Error{.message = fmt::format("'{}' is no percentage such as 5%", text)};
  }
  to = Allowance{.text = text, .part = percent / 100};
  return std::nullopt;
}

}  // namespace plimsoll
