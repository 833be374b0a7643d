#include "cli/command/manual.h"

#include <gtest/gtest.h>

namespace plimsoll::manual_test {
namespace {

bool Has(const std::string& page, const std::string& text) { return page.find(text) != page.npos; }

TEST(Manual, TextComesOutAsItWasTyped) {
  const std::string page = ManualOf(
      {.name = "tune", .what = "a \\ b", .remarks = {".hidden is \"quoted\" --twice", "'second'"}},
      "0.1.0");
  EXPECT_TRUE(Has(page, "plimsoll\\-tune \\- a \\(rs b\n")) << page;
  EXPECT_TRUE(Has(page, "\n\\&.hidden is \\(dqquoted\\(dq \\-\\-twice\n")) << page;
  EXPECT_TRUE(Has(page, "\n.PP\n\\(aqsecond\\(aq\n")) << page;
}

TEST(Manual, HasEveryArgumentAndFlag) {
  const std::string page =
      ManualOf({.name = "pack",
                .what = "packs",
                .arguments = {{.name = "FILE", .help = "a trace", .required = false, .many = true}},
                .flags = {{.names = {"-o", "--output"}, .type = "OUT", .help = "where to"}}},
               "0.1.0");
  EXPECT_TRUE(Has(page, "\\fBplimsoll pack\\fR [flags] [\\fIFILE\\fR...]\n")) << page;
  EXPECT_TRUE(Has(page, ".TP\n\\fIFILE\\fR\na trace\n")) << page;
  EXPECT_TRUE(Has(page, ".TP\n\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIOUT\\fR\nwhere to\n")) << page;
}

TEST(Manual, OverviewNamesThePageOfEveryCommand) {
  const std::string page =
      ManualOverview({{.name = "pack", .what = "packs"}, {.name = "tune", .what = "tunes"}}, "1");
  EXPECT_TRUE(Has(page, "\\fBplimsoll\\-pack\\fR(1),\n\\fBplimsoll\\-tune\\fR(1)\n")) << page;
  EXPECT_FALSE(Has(page, "plimsoll\\-help"));
}

}  // namespace
}  // namespace plimsoll::manual_test
