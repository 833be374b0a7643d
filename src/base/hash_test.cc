#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "base/flat_map.h"
#include "base/interner.h"

namespace plimsoll::hash_test {
namespace {

TEST(Hash, TellsNumbersAndTheirOrderApart) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t a = 0; a < 100; ++a) {
    for (std::uint64_t b = 0; b < 100; ++b) seen.insert(MixHash(a, b));
  }
  EXPECT_EQ(seen.size(), 10'000u);
}

TEST(Hash, TellsTextsApart) {
  std::set<std::uint64_t> seen;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    seen.insert(HashBytes(text));
    text += '\0';
  }
  EXPECT_EQ(seen.size(), 300u) << "zeros count";
  for (std::size_t at = 0; at < text.size(); ++at) {
    text[at] = 1;
    seen.insert(HashBytes(text));
    text[at] = 0;
  }
  EXPECT_EQ(seen.size(), 600u) << "every byte counts";
  EXPECT_EQ(HashBytes("same"), HashBytes(std::string("same")));
}

/// Keys that fall together in tables with a known rule: multiples of the sizes that the standard
/// library's tables take, and of powers of two.
TEST(Hash, ChosenKeysDoNotFallTogether) {
  for (const std::uint64_t step :
       {85229ull * 172933, 1ull << 32, 1ull << 48, 0x9e3779b97f4a7c15ull}) {
    HashMap<std::uint64_t, int> map;
    FlatMap flat;
    for (std::uint64_t i = 0; i < 100'000; ++i) {
      map.emplace(i * step, 0);
      flat.Set(i * step, 1);
    }
    std::size_t fullest = 0;
    for (std::size_t b = 0; b < map.bucket_count(); ++b) {
      fullest = std::max(fullest, map.bucket_size(b));
    }
    EXPECT_LT(fullest, 20u) << step;
    for (std::uint64_t i = 0; i < 100'000; ++i) ASSERT_EQ(flat.Find(i * step), 1u);
  }
}

}  // namespace
}  // namespace plimsoll::hash_test
