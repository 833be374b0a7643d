#include "allocator/settings/settings_tokens.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

namespace plimsoll {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

std::vector<std::string> SettingTokens(std::string_view conf, const VersionRules& rules) {
  std::vector<std::string> tokens;
  bool in_word = false;
  for (const char c : conf) {
    if (std::string_view(",:[]").find(c) != std::string_view::npos) {
      tokens.emplace_back(1, c);
      in_word = false;
    } else if (c != ' ' && !(rules.shared_parser && IsSpace(c))) {
      if (!in_word) tokens.emplace_back();
      tokens.back() += c;
      in_word = true;
    }
  }
  return tokens;
}

bool LoadsNative(std::string_view conf) {
  while (!conf.empty()) {
    const std::size_t length = std::min(conf.find_first_of(", \t\n\v\f\r"), conf.size());
    const std::string_view word = conf.substr(0, length);
    if (word == "backend:native") return true;
    if (word == "backend:cudaMallocAsync") return false;
    conf.remove_prefix(std::min(length + 1, conf.size()));
  }
  return true;
}

std::optional<std::uint64_t> ReadUnsigned(const std::string& token) {
  char* end = nullptr;
  errno = 0;
  const std::uint64_t value = std::strtoull(token.c_str(), &end, 10);
  if (end == token.c_str() || errno == ERANGE) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> ReadInt(const std::string& token) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(token.c_str(), &end, 10);
  if (end == token.c_str() || errno == ERANGE) return std::nullopt;
  if (value != static_cast<int>(value)) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

std::optional<double> ReadDouble(const std::string& token) {
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(token.c_str(), &end);
  if (end == token.c_str() || errno == ERANGE) return std::nullopt;
  return value;
}

std::optional<AddressReserve> ReadAddressReserve(std::string token) {
  AddressReserve reserve;
  if (token.ends_with('G') || token.ends_with('g')) {
    reserve.is_share = false;
    token.pop_back();
  }
  if (token.find_first_not_of("0123456789.+-eE") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  reserve.value = std::strtod(token.c_str(), &end);
  const bool whole = !token.empty() && end == token.c_str() + token.size();
  if (!whole || !std::isfinite(reserve.value) || reserve.value <= 0) return std::nullopt;
  return reserve;
}

}  // namespace plimsoll
