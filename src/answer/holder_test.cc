#include "answer/holder.h"

#include <gtest/gtest.h>

namespace plimsoll::holder_test {
namespace {

TEST(FoldedLayers, AreOneHolder) {
  EXPECT_EQ(FoldedLayers("transformer.h.11.mlp.act"), "transformer.h.*.mlp.act");
  EXPECT_EQ(FoldedLayers("blocks.3.mlp.2"), "blocks.*.mlp.2");
  EXPECT_EQ(FoldedLayers("layer4.1.conv2"), "layer4.*.conv2");
  EXPECT_EQ(FoldedLayers("head"), "head");
  EXPECT_EQ(FoldedLayers("4"), "4");
  EXPECT_EQ(FoldedLayers(""), "");
}

TEST(ByLine, AddsUpTheModulesOfALine) {
  const std::vector<Holder> holders =
      ByLine({{.where = "a.py:1",
               .category = Category::kActivations,
               .bytes = 10,
               .count = 1,
               .module = "x"},
              {.where = "b.py:2", .category = Category::kActivations, .bytes = 25, .count = 1},
              {.where = "a.py:1",
               .category = Category::kActivations,
               .bytes = 20,
               .count = 3,
               .module = "y"},
              {.where = "a.py:1", .category = Category::kInputs, .bytes = 1, .count = 1}});
  ASSERT_EQ(holders.size(), 3u);
  EXPECT_EQ(holders[0].where, "a.py:1");
  EXPECT_EQ(holders[0].bytes, 30);
  EXPECT_EQ(holders[0].count, 4);
  EXPECT_EQ(holders[0].module, "y");
  ASSERT_EQ(holders[0].parts.size(), 2u);
  EXPECT_EQ(holders[0].parts[1].module, "x");
  EXPECT_EQ(holders[1].where, "b.py:2");
  EXPECT_TRUE(holders[1].parts.empty());
}

}  // namespace
}  // namespace plimsoll::holder_test
