// Sizes in bytes: how they are spelled by people and printed for them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

/// A count of bytes. Signed, so that differences are safe.
using Bytes = std::int64_t;

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

/// "15.98 GiB", "512.00 MiB", "3.50 KiB", "12 bytes"; negative sizes keep their sign.
std::string FormatBytes(Bytes n);

/// "20GiB", "1.5 GB", "200MiB", "512B", "24G": binary units whether or not the i is written, as
/// PyTorch and the people who write about it mean them. A number without a unit is refused, except
/// 0.
Result<Bytes> ParseBytes(std::string_view text);

}  // namespace plimsoll
