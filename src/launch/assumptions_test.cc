#include "launch/assumptions.h"

#include <gtest/gtest.h>

namespace plimsoll::assumptions_test {
namespace {

Assumptions Read(std::string_view text) {
  Assumptions read;
  const std::optional<Error> error = ReadAssumptions(text, read);
  EXPECT_FALSE(error) << error->ToLine();
  return read;
}

TEST(Assumptions, EachFormIsRead) {
  EXPECT_EQ(Read("routing=balanced").routing, Routing{});
  EXPECT_EQ(Read("routing=worst").routing, Routing{.kind = Routing::Kind::kWorst});
  const Assumptions both = Read("mask=0.25,routing=skewed:2.5");
  EXPECT_EQ(both.routing, (Routing{.kind = Routing::Kind::kSkewed, .factor = 2.5}));
  EXPECT_EQ(both.mask, 0.25);
  EXPECT_EQ(Read("mask=0").mask, 0.0);
  EXPECT_EQ(Read("mask=1").mask, 1.0);
  EXPECT_FALSE(Read("mask=1").routing);
  EXPECT_EQ(Read("outliers=0.01").outliers, 0.01);
  EXPECT_FALSE(Read("outliers=0.01").mask);
}

TEST(Assumptions, FlagsThatAreGivenAgainAddUp) {
  Assumptions read;
  EXPECT_FALSE(ReadAssumptions("routing=worst", read));
  EXPECT_FALSE(ReadAssumptions("mask=0.5", read));
  EXPECT_EQ(AsText(read), "routing=worst,mask=0.5");
  EXPECT_TRUE(ReadAssumptions("mask=0.5", read));
}

TEST(Assumptions, WhatIsWrittenIsReadAgain) {
  for (const char* text :
       {"routing=balanced", "routing=skewed:3", "mask=0.0000000000001",
        "routing=skewed:123456789012.25", "routing=worst,mask=0.125", "mask=0.5,outliers=0.01"}) {
    EXPECT_EQ(AsText(Read(text)), text);
  }
  EXPECT_EQ(AsText(Assumptions{}), "");
}

TEST(Assumptions, AnythingElseIsRefused) {
  for (const char* text : {"",
                           ",",
                           "mask",
                           "mask=",
                           "mask=1.01",
                           "mask=-0.5",
                           "mask=nan",
                           "mask=1e-3",
                           "mask=0x1",
                           "mask=0.5.5",
                           "mask=.",
                           "mask=.5",
                           "mask=1.",
                           "mask=25%",
                           "mask= 0.5",
                           "mask=0000000000000000000.5",
                           "routing=",
                           "routing=Worst",
                           "routing=skewed",
                           "routing=skewed:",
                           "routing=skewed:0.5",
                           "routing=skewed:inf",
                           "routing=worst:2",
                           "experts=2",
                           "routing=worst,",
                           "mask=0.5,mask=0.5"}) {
    Assumptions read;
    const std::optional<Error> error = ReadAssumptions(text, read);
    ASSERT_TRUE(error) << text;
    EXPECT_FALSE(error->hint.empty()) << text;
    EXPECT_EQ(error->ToLine().find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace plimsoll::assumptions_test
