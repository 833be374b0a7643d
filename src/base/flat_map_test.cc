#include "base/flat_map.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

namespace plimsoll::flat_map_test {
namespace {

TEST(FlatMap, BehavesLikeAMapUnderRandomLoad) {
  std::mt19937_64 random(7);
  FlatMap map;
  std::unordered_map<std::uint64_t, std::uint32_t> reference;
  for (std::uint32_t i = 0; i < 200000; ++i) {
    // Few distinct keys, so that most operations hit something and runs of probes form.
    const std::uint64_t key = (random() % 3000) * 512;
    if (random() % 3 == 0) {
      map.Erase(key);
      reference.erase(key);
    } else {
      map.Set(key, i);
      reference[key] = i;
    }
    const std::uint64_t asked = (random() % 3000) * 512;
    const auto found = reference.find(asked);
    ASSERT_EQ(map.Find(asked), found == reference.end() ? FlatMap::kMissing : found->second);
  }
  EXPECT_EQ(map.size(), reference.size());
}

}  // namespace
}  // namespace plimsoll::flat_map_test
