// The first bytes of a packed file: what it is shows without unpacking all of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace plimsoll {

/// Up to `most` bytes of what the beginning of a file unpacks to; the beginning itself where it is
/// not packed. What is damaged, or lies beyond the beginning, is left out.
std::string UnpackHead(std::string_view beginning, std::size_t most);

}  // namespace plimsoll
