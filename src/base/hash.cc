#include "base/hash.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "base/check.h"

namespace plimsoll {
namespace {

std::uint64_t Word(const char* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t MixTwo(std::uint64_t hash, const char* at) {
  return FoldedProduct(Word(at) ^ hash, Word(at + 8) ^ kHashSeed.second);
}

}  // namespace

// Not std::random_device, which asks for the C library that its own library was built with: the
// program would need glibc 2.36.
std::uint64_t RandomNumber() {
  std::uint64_t number = 0;
  PLIMSOLL_CHECK(getentropy(&number, sizeof number) == 0);
  return number;
}

std::uint64_t HashBytes(std::string_view bytes) {
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t hash = MixHash(0, left);
  if (left >= 64) {
    // Four at a time, so that the multiplications overlap: most of a snapshot passes here.
    std::array<std::uint64_t, 4> lanes = {hash, ~hash, hash + kHashSeed.first,
                                          hash + kHashSeed.second};
    for (; left >= 64; left -= 64, at += 64) {
      for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = MixTwo(lanes[i], at + 16 * i);
    }
    for (const std::uint64_t lane : lanes) hash = MixHash(hash, lane);
  }
  for (; left > 16; left -= 16, at += 16) hash = MixTwo(hash, at);
  std::array<char, 16> rest{};
  if (left > 0) std::memcpy(rest.data(), at, left);
  return MixHash(MixTwo(hash, rest.data()), bytes.size());
}

}  // namespace plimsoll
