// What the reader and the writer of a training state have in common.
#pragma once

#include <zlib.h>

#include <bit>
#include <cstdint>
#include <string_view>

namespace plimsoll::train::layout {

static_assert(std::endian::native == std::endian::little,
              "tensors are written as they lie in memory");

constexpr std::string_view kBegin = "plimsoll train state 2\n";
/// The former format had a section that LibTorch read, as a program.
constexpr std::string_view kFormerBegin = "plimsoll train state 1\n";
constexpr std::string_view kEnd = "the end\n";

/// Between the index and kEnd.
struct Footer {
  std::uint64_t index_bytes = 0;
  std::uint32_t index_checksum = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(Footer) == 16);
constexpr std::uint64_t kFooterBytes = sizeof(Footer) + kEnd.size();

/// Each tensor begins at the next multiple of this, with zeros before it.
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t Aligned(std::uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

inline std::uint32_t Checksum(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace plimsoll::train::layout
