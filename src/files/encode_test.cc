#include "files/encode.h"

#include <gtest/gtest.h>

namespace plimsoll::encode_test {
namespace {

TEST(Encode, Base64PadsAsTheStandardSays) {
  EXPECT_EQ(Base64(""), "");
  EXPECT_EQ(Base64("f"), "Zg==");
  EXPECT_EQ(Base64("fo"), "Zm8=");
  EXPECT_EQ(Base64("foo"), "Zm9v");
  EXPECT_EQ(Base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(Base64(std::string("\xff\x00\xfe", 3)), "/wD+");
}

TEST(Encode, HexGivesItsBytes) { EXPECT_EQ(FromHex("00fF10"), std::string("\x00\xff\x10", 3)); }

TEST(Encode, VarintsAreShortForSmallNumbersOfEitherSign) {
  std::string out;
  AppendVarint(out, 127);
  AppendVarint(out, 300);
  EXPECT_EQ(out, "\x7f\xac\x02");
  out.clear();
  AppendSignedVarint(out, -1);
  AppendSignedVarint(out, 1);
  AppendSignedVarint(out, -64);
  EXPECT_EQ(out, "\x01\x02\x7f");
}

TEST(Encode, DeflatedIsSmallerAndInZlibsFormat) {
  const std::string packed = Deflated(std::string(100'000, 'a'));
  EXPECT_LT(packed.size(), 1000u);
  EXPECT_EQ(static_cast<unsigned char>(packed[0]), 0x78);
}

}  // namespace
}  // namespace plimsoll::encode_test
