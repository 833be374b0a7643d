// The words and numbers of PYTORCH_CUDA_ALLOC_CONF, read as the C++ library reads them for PyTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/settings/settings.h"
#include "allocator/settings/version.h"

namespace plimsoll {

/// Words and the four separators, each a token. White space inside a word is dropped.
std::vector<std::string> SettingTokens(std::string_view conf, const VersionRules& rules);

/// Whether the loader of CUDA's own parser picks backend:native (or nothing, which is the same). It
/// takes white space as a separator where the parser drops it; the two must agree.
bool LoadsNative(std::string_view conf);

/// As std::stoull reads: blanks before, a sign, and whatever stands behind the digits pass.
std::optional<std::uint64_t> ReadUnsigned(const std::string& token);

/// As std::stoi reads; a negative number becomes a huge one, as in PyTorch.
std::optional<std::uint64_t> ReadInt(const std::string& token);

/// As std::stod reads: "nan", "inf" and hexadecimal digits pass too.
std::optional<double> ReadDouble(const std::string& token);

/// "0.5" of the device or "40G"; nothing for what PyTorch ignores with a warning.
std::optional<AddressReserve> ReadAddressReserve(std::string token);

}  // namespace plimsoll
