#include "allocator/model/free_list.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>

namespace plimsoll::free_list_test {
namespace {

using Entry = FreeList::Entry;
/// Size and tie: what the order is made of.
using Key = std::pair<Bytes, std::uint64_t>;

std::vector<Key> Forward(const FreeList& list) {
  std::vector<Key> keys;
  for (auto at = list.First(); !list.AtEnd(at); at = list.Next(at)) {
    keys.emplace_back(list.At(at).size, list.At(at).tie);
  }
  return keys;
}

std::vector<Key> Backward(const FreeList& list) {
  std::vector<Key> keys;
  if (list.Empty()) return keys;
  for (auto at = list.Last();; at = list.Previous(at)) {
    keys.emplace_back(list.At(at).size, list.At(at).tie);
    if (list.AtBeginning(at)) return keys;
  }
}

/// The block that a search for `size` finds.
std::optional<std::uint32_t> Found(const FreeList& list, Bytes size) {
  const auto at = list.LowerBound({.size = size});
  if (list.AtEnd(at)) return std::nullopt;
  return list.At(at).block;
}

TEST(FreeList, AnEmptyListFindsNothing) {
  const FreeList list;
  EXPECT_TRUE(list.Empty());
  EXPECT_TRUE(list.AtEnd(list.First()));
  EXPECT_EQ(Found(list, 0), std::nullopt);
}

TEST(FreeList, OrdersBySizeAndThenByTie) {
  FreeList list;
  list.Insert({.size = 1024, .tie = 9});
  list.Insert({.size = 512, .tie = 7});
  list.Insert({.size = 1024, .tie = 3});
  list.Insert({.size = 512, .tie = 8});
  const std::vector<Key> order = {{512, 7}, {512, 8}, {1024, 3}, {1024, 9}};
  EXPECT_EQ(Forward(list), order);
  EXPECT_EQ(Backward(list), std::vector<Key>(order.rbegin(), order.rend()));
}

TEST(FreeList, ASearchTakesTheSmallestThatSufficesAndOfThoseTheLowestTie) {
  FreeList list;
  list.Insert({.size = 4096, .tie = 1, .block = 1});
  list.Insert({.size = 2048, .tie = 6, .block = 2});
  list.Insert({.size = 2048, .tie = 5, .block = 3});
  EXPECT_EQ(Found(list, 512), 3u);
  EXPECT_EQ(Found(list, 2048), 3u);
  EXPECT_EQ(Found(list, 2049), 1u);
  EXPECT_EQ(Found(list, 4097), std::nullopt);
}

TEST(FreeList, TheLastEntryLeavesAnEmptyList) {
  FreeList list;
  list.Insert({.size = 512, .tie = 1});
  list.Insert({.size = 512, .tie = 2});
  list.Erase(Entry{.size = 512, .tie = 1});
  list.Erase(list.First());
  EXPECT_TRUE(list.Empty());
  list.Insert({.size = 1024, .tie = 3});
  EXPECT_EQ(Forward(list), (std::vector<Key>{{1024, 3}}));
}

TEST(FreeList, AReplacedEntryTakesItsNewPlace) {
  for (const Bytes size : {100, 200, 250, 300, 350, 400, 999}) {
    for (const std::size_t which : {0u, 1u, 2u, 3u}) {
      FreeList list;
      std::set<Key> expected;
      for (const Bytes s : {200, 300, 400, 500}) {
        list.Insert({.size = s, .tie = 5, .block = static_cast<std::uint32_t>(s)});
        expected.insert({s, 5});
      }
      auto at = list.First();
      for (std::size_t i = 0; i < which; ++i) at = list.Next(at);
      expected.erase({list.At(at).size, 5});
      expected.insert({size, 6});
      list.Replace(at, {.size = size, .tie = 6, .block = 77});
      EXPECT_EQ(Forward(list), std::vector<Key>(expected.begin(), expected.end()))
          << "entry " << which << " becomes " << size;
      EXPECT_EQ(list.At(list.LowerBound({.size = size, .tie = 6})).block, 77u);
    }
  }
}

TEST(FreeList, AReplacedEntryCrossesAThousandOthers) {
  FreeList list;
  for (std::uint32_t i = 0; i < 1000; ++i) list.Insert({.size = 512 * (i + 1), .tie = i});
  list.Replace(list.First(), {.size = 512 * 2000, .tie = 1});
  EXPECT_EQ(list.At(list.Last()).size, 512 * 2000);
  EXPECT_EQ(list.At(list.First()).size, 1024);
  list.Replace(list.Last(), {.size = 1, .tie = 1});
  EXPECT_EQ(list.At(list.First()).size, 1);
  list.Replace(list.LowerBound({.size = 512 * 500}), {.size = 512 * 700 + 1, .tie = 1});
  const std::vector<Key> keys = Forward(list);
  EXPECT_EQ(keys.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  EXPECT_EQ(Found(list, 512 * 500), list.At(list.LowerBound({.size = 512 * 501})).block);
}

/// Few sizes give many ties; few entries and many give one run and dozens.
class FreeListAgainstASet : public testing::TestWithParam<std::tuple<int, std::size_t>> {};

TEST_P(FreeListAgainstASet, StaysTheSame) {
  const auto [sizes, most] = GetParam();
  std::mt19937_64 random(20240711 + static_cast<unsigned>(sizes));
  FreeList list;
  std::set<Key> expected;
  const auto any_key = [&] {
    return Key{512 * static_cast<Bytes>(random() % static_cast<unsigned>(sizes) + 1),
               random() % 100000};
  };
  for (int step = 0; step < 30000; ++step) {
    const Key key = any_key();
    const auto near = expected.lower_bound(any_key());
    const bool full = expected.size() >= most;
    const auto kind = random() % 10;
    if (kind < (full ? 3u : 5u)) {
      if (expected.insert(key).second) list.Insert({.size = key.first, .tie = key.second});
    } else if (kind < 7 && near != expected.end()) {
      list.Erase(Entry{.size = near->first, .tie = near->second});
      expected.erase(near);
    } else if (near != expected.end() && !expected.contains(key)) {
      const auto at = list.LowerBound({.size = near->first, .tie = near->second});
      list.Replace(at, {.size = key.first, .tie = key.second});
      expected.erase(near);
      expected.insert(key);
    }
    const Key wanted = any_key();
    const auto found = list.LowerBound({.size = wanted.first, .tie = wanted.second});
    const auto it = expected.lower_bound(wanted);
    ASSERT_EQ(list.AtEnd(found), it == expected.end()) << "step " << step;
    if (it != expected.end()) {
      ASSERT_EQ(list.At(found).size, it->first) << "step " << step;
      ASSERT_EQ(list.At(found).tie, it->second) << "step " << step;
    }
    if (step % 1000 != 0) continue;
    ASSERT_EQ(Forward(list), std::vector<Key>(expected.begin(), expected.end())) << step;
    ASSERT_EQ(Backward(list), std::vector<Key>(expected.rbegin(), expected.rend())) << step;
  }
  while (!expected.empty()) {
    const auto first = expected.begin();
    list.Erase(Entry{.size = first->first, .tie = first->second});
    expected.erase(first);
  }
  EXPECT_TRUE(list.Empty());
}

INSTANTIATE_TEST_SUITE_P(SizesAndEntries, FreeListAgainstASet,
                         testing::Combine(testing::Values(1, 7, 3000),
                                          testing::Values(10u, 200u, 5000u)));

}  // namespace
}  // namespace plimsoll::free_list_test
