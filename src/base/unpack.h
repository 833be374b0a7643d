// gzip, xz and zstd, recognised by their magic numbers.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

enum class Packing { kNone, kGzip, kXz, kZstd };

Packing RecognisePacking(std::string_view bytes);

/// The unpacked bytes. A small file that claims to unpack to gigabytes is refused.
Result<std::string> Unpack(Packing packing, std::string_view packed);

}  // namespace plimsoll
