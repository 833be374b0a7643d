#include "readers/wordings/phrase_finder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace plimsoll::phrase_finder_test {
namespace {

/// What stands where a phrase was found, one after the other.
std::vector<std::string> FoundIn(std::string_view text) {
  static constexpr std::string_view kPhrases[] = {
      "MA ", "memory:", "Max_MA", "out of memory", "_memory", "<<end", "\"memory/", "ab"};
  static const PhraseFinder finder(kPhrases);
  std::vector<std::string> found;
  PhraseFinder::Walk walk(finder, text);
  while (const auto hit = walk.Next()) {
    found.emplace_back(text.substr(hit->begin, hit->end - hit->begin));
  }
  return found;
}

using Texts = std::vector<std::string>;

TEST(PhraseFinder, OneBehindTheOther) {
  EXPECT_EQ(FoundIn("Memory:memory: x"), (Texts{"Memory:", "memory:"}));
  EXPECT_EQ(FoundIn("memmemory: MAx"), (Texts{"memory:", "MA"})) << "one begins inside another";
  EXPECT_EQ(FoundIn("mmmmemory:"), (Texts{"memory:"}));
  EXPECT_EQ(FoundIn("aab"), (Texts{"ab"}));
  EXPECT_EQ(FoundIn("ab"), (Texts{"ab"})) << "the whole text";
  EXPECT_EQ(FoundIn("a"), (Texts{}));
}

TEST(PhraseFinder, WhatStandsBetween) {
  EXPECT_EQ(FoundIn("m emo\try:"), (Texts{"m emo\try:"}));
  EXPECT_EQ(FoundIn("a   b"), (Texts{"a   b"}));
  EXPECT_EQ(FoundIn("x\nout of me\n[rank3]: mory"), (Texts{"out of me\n[rank3]: mory"}));
  EXPECT_EQ(FoundIn("m\n[rank3]: memory:"), (Texts{"memory:"}));
  EXPECT_EQ(FoundIn("m\x1b[31memory: \x1b[32mmemory:"), (Texts{"m\x1b[31memory:", "memory:"}));
  EXPECT_EQ(FoundIn("out\\_memory of\\nmemory"), (Texts{"_memory"}));
  EXPECT_EQ(FoundIn("out of\\nmemory"), (Texts{"out of\\nmemory"}));
}

TEST(PhraseFinder, WhatBeginsInMarkup) {
  EXPECT_EQ(FoundIn("a<<end"), (Texts{"<<end"}));
  EXPECT_EQ(FoundIn("&quot;memory/ \\\"memory/"), (Texts{"&quot;memory/", "\"memory/"}));
}

}  // namespace
}  // namespace plimsoll::phrase_finder_test
