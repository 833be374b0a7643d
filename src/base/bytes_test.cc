#include "base/bytes.h"

#include <gtest/gtest.h>

namespace plimsoll::bytes_test {
namespace {

TEST(Bytes, AreFormattedInTheLargestUnitBelowThem) {
  EXPECT_EQ(FormatBytes(0), "0 bytes");
  EXPECT_EQ(FormatBytes(1023), "1023 bytes");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(3 * kMiB / 2), "1.50 MiB");
  EXPECT_EQ(FormatBytes(20 * kGiB), "20.00 GiB");
  EXPECT_EQ(FormatBytes(-3 * kMiB), "-3.00 MiB");
}

TEST(Bytes, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(*ParseBytes("20GiB"), 20 * kGiB);
  EXPECT_EQ(*ParseBytes("1.5 GB"), 3 * kGiB / 2);
  EXPECT_EQ(*ParseBytes("24G"), 24 * kGiB);
  EXPECT_EQ(*ParseBytes("200MiB"), 200 * kMiB);
  EXPECT_EQ(*ParseBytes("512B"), 512);
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("7 bytes"), 7);
}

TEST(Bytes, RefuseANumberWithoutAUnit) {
  const Result<Bytes> size = ParseBytes("12");
  ASSERT_FALSE(size.ok());
  EXPECT_EQ(size.error().ToLine(), "'12' has no unit; write 12GiB, 12MiB or 12B");
}

TEST(Bytes, RefuseWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1GiB", "1.2.3", "20XiB", "1e99", "99999999999TiB", "Gi"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

}  // namespace
}  // namespace plimsoll::bytes_test
