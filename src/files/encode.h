// Bytes in the forms in which they travel inside text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll {

/// Compressed in zlib's format, as browsers unpack it ("deflate").
std::string Deflated(std::string_view bytes);

std::string Base64(std::string_view bytes);

/// "00ff10" to its three bytes.
std::string FromHex(std::string_view digits);

/// The checksum of gzip and PNG.
std::uint32_t Crc32(std::string_view bytes);

/// Appends in groups of seven bits, the lowest first; the high bit says that more follow.
void AppendVarint(std::string& out, std::uint64_t value);
/// The same for numbers of either sign, small ones short.
void AppendSignedVarint(std::string& out, std::int64_t value);

}  // namespace plimsoll
