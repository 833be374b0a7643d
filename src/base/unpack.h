// gzip, xz and zstd, recognised by their magic numbers.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

enum class Compression { kNone, kGzip, kXz, kZstd };

Compression RecogniseCompression(std::string_view bytes);

/// The unpacked bytes. A small file that claims to unpack to gigabytes is refused.
Result<std::string> Unpack(Compression compression, std::string_view packed);

}  // namespace plimsoll
