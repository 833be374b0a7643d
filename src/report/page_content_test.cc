#include "report/page_content.h"

#include <gtest/gtest.h>

#include "diagnose/explain.h"

namespace plimsoll::page_content_test {
namespace {

Explanation Explained(const std::string& file, std::optional<int> rank, Bytes peak,
                      bool died = false) {
  RankReport report{.file = file, .rank = rank, .device = 0, .events = 10};
  report.peak_allocated = report.peak_reserved = peak;
  if (died) report.ooms.push_back({.event = 3, .requested = 1, .fatal = true});
  for (int i = 0; i < 40; ++i) {
    report.holders.push_back({.where = "f" + std::to_string(i), .bytes = 1000 - i, .count = 1});
  }
  Explanation explanation{.verdict = "v"};
  explanation.ranks.push_back(report);
  return explanation;
}

PageRun RunOf(const std::string& file, std::size_t bytes) {
  return {.file = file, .device = 0, .history = std::string(bytes, 'x')};
}

TEST(PageContent, NamesTheFirstFileAndCountsTheOthers) {
  PageParts parts;
  parts.explanations = {Explained("/a/rank0.pickle", 0, 1), Explained("/a/rank1.pickle", 1, 1)};
  const Result<PageContent> page = AssemblePage(parts, {});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->title, "rank0.pickle and 1 more");
  EXPECT_FALSE(page->baseline);
}

TEST(PageContent, NamesTheProcessesOfACard) {
  PageParts parts;
  parts.explanations = {Explained("/a/engine.pickle", {}, 1),
                        Explained("/a/trainer.pickle", {}, 2)};
  CardStudy& study = parts.cards.emplace_back();
  study.report.processes = {{.name = "engine", .file = "/a/engine.pickle"},
                            {.name = "trainer", .file = "/a/trainer.pickle"}};
  const Result<PageContent> page = AssemblePage(parts, {});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->title, "engine and trainer on one card");
  ASSERT_EQ(page->explanation.cards.size(), 1u);
  EXPECT_EQ(page->explanation.ranks[1].process, "trainer");
}

TEST(PageContent, KeepsTheTimelineOfTheRankThatRanOut) {
  PageParts parts;
  parts.explanations = {Explained("a", 0, 1), Explained("b", 1, 1, true)};
  parts.runs = {RunOf("a", 6'000'000), RunOf("b", 6'000'000)};
  const Result<PageContent> page = AssemblePage(parts, {});
  ASSERT_TRUE(page);
  EXPECT_TRUE(page->runs[0].history.empty());
  EXPECT_FALSE(page->runs[1].history.empty());
  EXPECT_EQ(page->left_out.size(), 1u);
}

TEST(PageContent, ComparesEachRankWithTheSameRank) {
  PageParts own;
  own.explanations = {Explained("a0", 0, 100), Explained("a1", 1, 100), Explained("a7", 7, 100)};
  PageParts base;
  base.explanations = {Explained("b1", 1, 70), Explained("b0", 0, 100)};
  base.runs = {RunOf("b1", 9'000'000)};
  own.runs = {RunOf("a0", 9'000'000)};
  const Result<PageContent> page = AssemblePage(own, base);
  ASSERT_TRUE(page);
  ASSERT_TRUE(page->baseline);
  const auto partner = [&](std::size_t i) {
    return page->baseline->explanation.ranks[page->baseline->pairs[i].rank].file;
  };
  EXPECT_EQ(partner(0), "b0");
  EXPECT_EQ(partner(1), "b1");
  EXPECT_LT(page->baseline->pairs[2].rank, 2u) << "there is no rank 7, but another to compare with";
  EXPECT_NE(page->baseline->pairs[1].verdict.find("70 bytes to 100 bytes"), std::string::npos);
  // Both sides have room of their own.
  EXPECT_FALSE(page->runs[0].history.empty());
  EXPECT_FALSE(page->baseline->runs[0].history.empty());
  EXPECT_EQ(page->explanation.ranks[0].holders.size(), ExplainOptions{}.most_holders + 1);
}

TEST(PageContent, SaysWhatCannotBeCompared) {
  PageParts own;
  own.explanations = {Explained("a", 0, 100)};
  PageParts base;
  base.explanations = {Explained("error.txt", 0, 100)};
  base.explanations[0].ranks[0].peak_allocated.reset();
  const Result<PageContent> page = AssemblePage(own, base);
  ASSERT_FALSE(page);
  EXPECT_EQ(page.error().file, "error.txt");
}

}  // namespace
}  // namespace plimsoll::page_content_test
