// Mixing numbers into a hash.
#pragma once

#include <cstdint>

namespace plimsoll {

inline std::uint64_t MixHash(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace plimsoll
