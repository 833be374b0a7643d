#include "packing/csv.h"

#include <gtest/gtest.h>

namespace plimsoll::csv_test {
namespace {

Result<PackingCsv> Read(const std::string& text) {
  return ReadPackingCsv(*Input::FromMemory("in.csv", text));
}

std::string ErrorOf(const std::string& text) {
  const auto csv = Read(text);
  return csv.ok() ? "read" : csv.error().ToLine();
}

TEST(PackingCsv, ReadsColumnsInAnyOrder) {
  const auto csv = Read("size,upper,id,lower,alignment\n4,3,b1,0,\n8, 9 ,\"b,2\",3,512\r\n\n");
  ASSERT_TRUE(csv.ok());
  ASSERT_EQ(csv->problem.buffers.size(), 2u);
  EXPECT_EQ(csv->ids[1], "b,2");
  EXPECT_EQ(csv->problem.buffers[0].size, 4);
  EXPECT_EQ(csv->problem.buffers[0].alignment, 1);
  EXPECT_EQ(csv->problem.buffers[1].lower, 3);
  EXPECT_EQ(csv->problem.buffers[1].upper, 9);
  EXPECT_EQ(csv->problem.buffers[1].alignment, 512);
}

TEST(PackingCsv, KnowsTheOtherNames) {
  const auto csv = Read("id,start,end,size,hint,gaps\nx,2,4,5,-1,\ny,2,4,5,0,3-4\n");
  ASSERT_TRUE(csv.ok());
  EXPECT_EQ(csv->problem.buffers[0].lower, 2);
  EXPECT_EQ(csv->problem.buffers[0].upper, 5);
  EXPECT_EQ(csv->with_gaps, 1u);
}

TEST(PackingCsv, SaysWhereAndWhat) {
  EXPECT_EQ(
      ErrorOf(""),
      "in.csv: line 1: the file is empty; the first row names the columns: id,lower,upper,size");
  EXPECT_EQ(ErrorOf("id,lower,upper\n"),
            "in.csv: line 1: there is no column 'size'; the first row names the columns: "
            "id,lower,upper,size");
  EXPECT_EQ(ErrorOf("id,lower,upper,size\na,1,2,3\n\nb,1,2\n"),
            "in.csv: line 4: 3 fields, but the first row names 4 columns; write one field for each "
            "column");
  EXPECT_EQ(
      ErrorOf("id,lower,upper,size\na,1,2,3kB\n"),
      "in.csv: line 2: '3kB' is not a whole number; times and sizes are whole numbers without "
      "units");
  EXPECT_EQ(
      ErrorOf("id,lower,upper,size\na,7,7,3\n"),
      "in.csv: line 2: the buffer 'a' ends before it begins; 'upper' is the first moment after "
      "its life");
  EXPECT_EQ(
      ErrorOf("id,lower,end,upper,size\n"),
      "in.csv: line 1: there are both 'upper' and 'end'; keep one: 'end' is the last moment of "
      "a life");
  EXPECT_EQ(ErrorOf("id,lower,begin,upper,size\n"),
            "in.csv: line 1: the column 'begin' is there twice; keep one");
  EXPECT_EQ(
      ErrorOf("id,lower,upper,size\na,0,1,99999999999999999999\n"),
      "in.csv: line 2: '99999999999999999999' is not a whole number; times and sizes are whole "
      "numbers without units");
}

TEST(PackingCsv, WritesWhatItReads) {
  const auto csv = Read("id,lower,end,size\na,0,2,4\n\"b,c\",3,8,4\n");
  ASSERT_TRUE(csv.ok());
  const std::string written = WritePackingCsv(*csv, {{0, 16}, 20});
  EXPECT_EQ(written, "id,lower,upper,size,offset\na,0,3,4,0\n\"b,c\",3,9,4,16\n");
  const auto again = Read(written);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->ids, csv->ids);
}

}  // namespace
}  // namespace plimsoll::csv_test
