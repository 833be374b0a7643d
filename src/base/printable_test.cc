#include "base/printable.h"

#include <gtest/gtest.h>

namespace plimsoll::printable_test {
namespace {

TEST(Printable, LeavesWhatIsSeen) {
  for (const char* text : {"", "train.py:57 in forward", "größe …", "张量 × 3", "😀"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, ReplacesWhatMovesHidesOrTurns) {
  EXPECT_EQ(Printable("a\x1b[31mb\nc\x7f"), "a?[31mb?c?");
  EXPECT_EQ(Printable("a\xc2\x9b\xc2\xad"), "a??");  // CSI, soft hyphen
  EXPECT_EQ(Printable("x\xe2\x80\xae"
                      "cba\xe2\x81\xa6y\xd8\x9c"),
            "x?cba?y?");  // bidi
  EXPECT_EQ(Printable("\xef\xbb\xbf\xe2\x80\x8b\xe2\x80\xa8\xe3\x85\xa4"), "????");
  EXPECT_EQ(Printable("\xf3\xa0\x81\x81"), "?");  // a tag character
}

TEST(Printable, ReplacesWhatIsNoText) {
  EXPECT_EQ(Printable("a\xff\x9b\xc0\x80z"), "a????z");
  EXPECT_EQ(Printable("\xe2\x80"), "??");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "???");  // half of a pair
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "????");
}

TEST(Printable, LinesStayLines) { EXPECT_EQ(PrintableLines("a\n\tb\r\x1b"), "a\n\tb??"); }

TEST(PrintableJson, EscapesAndLosesNothing) {
  EXPECT_EQ(PrintableJson("{\n \"a\": \"b…\"}\n"), "{\n \"a\": \"b…\"}\n");
  EXPECT_EQ(PrintableJson("\"x\xe2\x80\xaey\x7f\xc2\x9bz\""), "\"x\\u202ey\\u007f\\u009bz\"");
  EXPECT_EQ(PrintableJson("\"\xf3\xa0\x81\x81\""), "\"\\udb40\\udc41\"");
}

TEST(CsvCell, IsOneCellAndNoFormula) {
  EXPECT_EQ(CsvCell("plain, \"quoted\""), "\"plain, \"\"quoted\"\"\"");
  EXPECT_EQ(CsvCell("=1+1"), "\"'=1+1\"");
  EXPECT_EQ(CsvCell("@SUM(A1)"), "\"'@SUM(A1)\"");
  EXPECT_EQ(CsvCell("+cmd|' /C calc'!A0"), "\"'+cmd|' /C calc'!A0\"");
  EXPECT_EQ(CsvCell("-2 + 3"), "\"'-2 + 3\"");
  EXPECT_EQ(CsvCell("-2.5"), "\"-2.5\"");
  EXPECT_EQ(CsvCell("a\nb\x1b"), "\"a?b?\"");
}

}  // namespace
}  // namespace plimsoll::printable_test
