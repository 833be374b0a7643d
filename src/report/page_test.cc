#include "report/page.h"

#include <gtest/gtest.h>

#include "report/format/json_values.h"
#include "report/history_pack.h"

namespace plimsoll::page_test {
namespace {

const char kHostile[] = "</script><script>alert(1)</script><!-- \xff {{DATA}} \"&";

PageContent Content() {
  PageContent content{.title = kHostile};
  content.explanation.verdict = kHostile;
  content.explanation.ranks.push_back({.file = kHostile, .device = 0});
  content.runs.push_back({.file = kHostile, .device = 0, .history = PackHistory(History{})});
  content.plan = Dump({{"model", kHostile}});
  return content;
}

std::size_t CountOf(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

TEST(Page, NamesCannotEndAScriptOrOpenOne) {
  PageContent plain;
  plain.runs.push_back({.file = "a", .device = 0, .history = PackHistory(History{})});
  const std::string expected = PageHtml(plain);
  const std::string page = PageHtml(Content());
  EXPECT_EQ(CountOf(page, "<script"), CountOf(expected, "<script"));
  EXPECT_EQ(CountOf(page, "</script"), CountOf(expected, "</script"));
  EXPECT_EQ(CountOf(page, "<!--"), CountOf(expected, "<!--"));
}

TEST(Page, IsUtf8WhateverTheNamesAre) {
  const std::string page = PageHtml(Content());
  EXPECT_EQ(page.find('\xff'), std::string::npos);
  EXPECT_NE(page.find("<title>&lt;/script&gt;"), std::string::npos);
}

TEST(Page, AllowsOnlyWhatItHoldsItself) {
  const std::string page = PageHtml(Content());
  EXPECT_NE(page.find("content=\"default-src 'none'; script-src 'sha256-"), std::string::npos);
  EXPECT_EQ(page.find("unsafe-"), std::string::npos);
  EXPECT_EQ(page.find(" src="), std::string::npos);
  EXPECT_EQ(page.find("<link"), std::string::npos);
}

TEST(Page, HasEveryPlaceFilled) {
  PageContent content;
  content.title = "a";
  const std::string page = PageHtml(content);
  EXPECT_EQ(page.find("{{"), std::string::npos);
  EXPECT_NE(page.find("Redistribution"), std::string::npos) << "d3's licence travels with it";
}

}  // namespace
}  // namespace plimsoll::page_test
