#include "launch/assumptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

namespace plimsoll {
namespace {

constexpr std::string_view kSkewed = "skewed:";
/// As many as a double keeps, so that what is written is what was typed.
constexpr std::size_t kMostDigits = 15;

/// Digits with a point among them or without: no sign, no exponent, no infinity.
std::optional<double> NumberIn(std::string_view text) {
  const auto plain = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  if (text.empty() || text.size() > kMostDigits || !std::ranges::all_of(text, plain) ||
      text.front() == '.' || text.back() == '.') {
    return std::nullopt;
  }
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc() || at != end) return std::nullopt;
  return number;
}

std::string AsText(double number) {
  std::array<char, 64> text{};
  const auto [end, failed] =
      std::to_chars(text.begin(), text.end(), number, std::chars_format::fixed);
  return failed == std::errc() ? std::string(text.begin(), end) : "";
}

std::optional<Routing> RoutingIn(std::string_view text) {
  if (text == "balanced") return Routing{.kind = Routing::Kind::kBalanced};
  if (text == "worst") return Routing{.kind = Routing::Kind::kWorst};
  if (!text.starts_with(kSkewed)) return std::nullopt;
  const std::optional<double> factor = NumberIn(text.substr(kSkewed.size()));
  if (!factor || *factor < 1) return std::nullopt;
  return Routing{.kind = Routing::Kind::kSkewed, .factor = *factor};
}

Error Refused(std::string_view part) {
  return {.message = fmt::format("'{}' cannot be assumed", part),
          .hint =
              "give one or more of these, with commas: routing=balanced, routing=skewed:F (F "
              "from 1 on), routing=worst, mask=SHARE, outliers=SHARE (0 to 1)"};
}

Error Twice(std::string_view name) {
  return {.message = fmt::format("what is assumed of {} is said twice", name),
          .hint = "say it once"};
}

std::optional<Error> ReadOne(std::string_view part, Assumptions& to) {
  const std::size_t equals = std::min(part.find('='), part.size());
  const std::string_view name = part.substr(0, equals);
  const std::string_view value = part.substr(std::min(equals + 1, part.size()));
  if (name == "routing") {
    if (to.routing) return Twice(name);
    to.routing = RoutingIn(value);
    return to.routing ? std::nullopt : std::optional(Refused(part));
  }
  if (name != "mask" && name != "outliers") return Refused(part);
  std::optional<double>& share = name == "mask" ? to.mask : to.outliers;
  if (share) return Twice(name);
  share = NumberIn(value);
  return share && *share <= 1 ? std::nullopt : std::optional(Refused(part));
}

std::string AsText(const Routing& routing) {
  switch (routing.kind) {
    case Routing::Kind::kBalanced:
      return "routing=balanced";
    case Routing::Kind::kSkewed:
      return fmt::format("routing={}{}", kSkewed, AsText(routing.factor));
    case Routing::Kind::kWorst:
      return "routing=worst";
  }
  return "";
}

}  // namespace

std::optional<Error> ReadAssumptions(std::string_view text, Assumptions& to) {
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (auto error = ReadOne(text.substr(at, comma - at), to)) return error;
    at = comma + 1;
  }
  return std::nullopt;
}

std::string AsText(const Assumptions& assumptions) {
  std::vector<std::string> parts;
  if (assumptions.routing) parts.push_back(AsText(*assumptions.routing));
  if (assumptions.mask) parts.push_back("mask=" + AsText(*assumptions.mask));
  if (assumptions.outliers) parts.push_back("outliers=" + AsText(*assumptions.outliers));
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace plimsoll
