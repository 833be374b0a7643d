// Hashes of what files hold. Their seed is another one in each process: whoever writes a file
// cannot choose keys that all fall into one place of a table and make every lookup a search. So the
// order of a hash table is never an order of output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>
#include <unordered_map>

namespace plimsoll {

/// From the kernel, so that nobody can foresee it.
std::uint64_t RandomNumber();

struct HashSeed {
  std::uint64_t first = RandomNumber();
  std::uint64_t second = RandomNumber() | 1;
};
inline const HashSeed kHashSeed;

/// Both halves of the product: every bit of the one number moves every bit of the answer.
inline std::uint64_t FoldedProduct(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

/// Adds a number to a hash. The order matters: (1, 2) is not (2, 1).
inline std::uint64_t MixHash(std::uint64_t hash, std::uint64_t value) {
  return FoldedProduct(hash ^ kHashSeed.first, value ^ kHashSeed.second);
}

std::uint64_t HashBytes(std::string_view bytes);

/// For tables whose keys come from a file.
struct SeededHash {
  using is_transparent = void;

  std::size_t operator()(std::string_view text) const { return HashBytes(text); }
  template <typename T>
    requires std::is_integral_v<T>
  std::size_t operator()(T number) const {
    return MixHash(0, static_cast<std::uint64_t>(number));
  }
};

template <typename Key, typename Value>
using HashMap = std::unordered_map<Key, Value, SeededHash, std::equal_to<>>;

}  // namespace plimsoll
