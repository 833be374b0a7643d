#include "report/format/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace plimsoll::table_test {
namespace {

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(VisibleWidth, CountsWhatIsSeen) {
  EXPECT_EQ(VisibleWidth("high"), 4u);
  EXPECT_EQ(VisibleWidth("\033[1;31mhigh\033[0m"), 4u);
  EXPECT_EQ(VisibleWidth("█▉ 3×"), 5u);
}

TEST(WrapText, BreaksBetweenWordsOnly) {
  EXPECT_EQ(WrapText("made when a module was built", 12),
            (std::vector<std::string>{"made when a", "module was", "built"}));
  EXPECT_EQ(WrapText("expandable_segments:True", 10),
            (std::vector<std::string>{"expandable_segments:True"}));
}

TEST(WrapText, KeepsANumberWithItsUnit) {
  EXPECT_EQ(WrapText("it holds 9.67 GiB, all", 13),
            (std::vector<std::string>{"it holds", "9.67 GiB, all"}));
}

TEST(ShortenPath, KeepsTheFileAndWholeFolders) {
  const std::string path = "/home/me/project/src/models/unet.py:57";
  EXPECT_EQ(ShortenPath(path, 100), path);
  EXPECT_EQ(ShortenPath(path, 23), "/…/models/unet.py:57");
  EXPECT_EQ(ShortenPath("data/runs/monday/rank0.pickle", 24), "data/…/rank0.pickle");
  EXPECT_EQ(ShortenPath("C:\\work\\me\\runs\\train.py:3", 19), "C:\\…\\train.py:3");
  EXPECT_EQ(ShortenPath("a_very_long_name_without_folders.py", 10),
            "a_very_long_name_without_folders.py");
  EXPECT_EQ(ShortenPath("https://pytorch.org/docs/stable", 10), "https://pytorch.org/docs/stable");
}

std::string Laid(const Table& table, int width) {
  Writer w({.colour = false, .width = width});
  table.WriteTo(w);
  return w.Take();
}

TEST(Table, WrapsTheLastColumnBesideTheOthers) {
  Table table({{}, {.right = true}, {.wraps = true}});
  table.Row({"parameters", "1.00 GiB", "made when a module was built or moved"});
  table.Row({"free", "20 bytes", ""});
  EXPECT_EQ(Laid(table, 56),
            "  parameters  1.00 GiB  made when a module was built or\n"
            "                        moved\n"
            "  free        20 bytes\n");
}

TEST(Table, PutsTheLastColumnBelowWhereThereIsNoRoom) {
  Table table({{}, {.wraps = true}});
  table.Row({"a cell that takes most of the line", "and a sentence about it, to be read"});
  table.Under("in a module");
  EXPECT_EQ(Laid(table, 50),
            "  a cell that takes most of the line\n"
            "      and a sentence about it, to be read\n"
            "      in a module\n");
}

TEST(Table, LeavesOutWhatMayGoAndSaysSo) {
  Table table({{.heading = "card"},
               {.heading = "memory", .right = true, .may_go = true},
               {.heading = "bandwidth", .right = true, .may_go = true}});
  table.Row({"RTX 4090", "24", "1008"});
  Writer w({.colour = false, .width = 20});
  EXPECT_EQ(table.WriteTo(w), (std::vector<std::string>{"bandwidth"}));
  EXPECT_EQ(w.Take(), "  card      memory\n  RTX 4090      24\n");
}

TEST(Table, StaysWithinAnyWidthFromSixtyOn) {
  Table table({{}, {.right = true}, {.right = true}, {}, {.wraps = true, .dim = true}});
  table.Row({"optimizer state", "118.47 MiB", "100.0 %", "██████████",
             "made in the optimizer's step; stays until the process ends"});
  for (int width = 60; width <= 160; ++width) {
    Writer w({.colour = true, .width = width});
    table.WriteTo(w);
    for (const std::string& line : LinesOf(w.Take())) {
      EXPECT_LE(VisibleWidth(line), static_cast<std::size_t>(width)) << line;
    }
  }
}

TEST(Writer, CountsNoColourAsWidth) {
  Writer plain({.colour = false, .width = 40});
  Writer painted({.colour = true, .width = 40});
  const std::string text = "a limit stops PyTorch although the device has room";
  plain.Wrapped(text, "  high ", "       ");
  painted.Wrapped(text, "  " + painted.Paint("high", "1;31") + " ", "       ");
  EXPECT_EQ(LinesOf(plain.Take()).size(), LinesOf(painted.Take()).size());
}

}  // namespace
}  // namespace plimsoll::table_test
