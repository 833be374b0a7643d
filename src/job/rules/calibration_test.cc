#include "job/rules/calibration.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "files/encode.h"

namespace plimsoll::calibration_test {
namespace {

const char* kHeader = R"({"schema": "plimsoll.calibration/2", "gpu": "H200",
"batches": [[1, 2, 4, 8, 32]]})";

/// With the checksum that a whole file ends with.
std::string Signed(const std::string& text) {
  return text + fmt::format("crc32 {:08x}\n", Crc32(text));
}

Result<Calibration> Read(std::string text) {
  const Result<Input> input = Input::FromMemory("my.calibration", std::move(text));
  return input ? Calibration::Read(*input) : Result<Calibration>(input.error());
}

std::string Header() {
  std::string header = kHeader;
  header.erase(header.find('\n'), 1);  // it is one line
  return header + "\n";
}

/// 3×3, 64 to 64 channels, of images of 56×56.
ConvShape Shape(std::int64_t batch) {
  return {.n = batch,
          .c = 64,
          .h = 56,
          .w = 56,
          .k = 64,
          .ho = 56,
          .wo = 56,
          .kh = 3,
          .kw = 3,
          .pad_h = 1,
          .pad_w = 1};
}

const char* kKey = " nchw 64,56,56 64,3,3 1,1 1,1 1,1 1";

/// The forward of that shape takes these, batch by batch ("1:100 2:200").
Calibration With(const std::string& points, const std::string& dtype = "float32") {
  Result<Calibration> read =
      Read(Signed(Header() + dtype + kKey + "\t0\t" + points + "\t1:7\t1:9\n"));
  EXPECT_TRUE(read.ok()) << read.error().ToLine();
  return std::move(*read);
}
std::optional<Workspace> Forward(const Calibration& calibration, std::int64_t batch) {
  return calibration.Find(Shape(batch), ConvDirection::kForward);
}
Workspace Exactly(Bytes bytes) { return {bytes, bytes}; }

TEST(Calibration, IsExactAtAMeasuredBatch) {
  const Calibration calibration = With("1:100 2:300 4:500 8:1000");
  EXPECT_EQ(calibration.gpu(), "H200");
  EXPECT_EQ(calibration.size(), 1u);
  EXPECT_EQ(Forward(calibration, 1), Exactly(100));
  EXPECT_EQ(Forward(calibration, 4), Exactly(500));
  EXPECT_EQ(Forward(calibration, 8), Exactly(1000));
}

TEST(Calibration, EachDirectionHasItsOwn) {
  const Calibration calibration = With("1:100");
  EXPECT_EQ(calibration.Find(Shape(1), ConvDirection::kBackwardData), Exactly(7));
  EXPECT_EQ(calibration.Find(Shape(1), ConvDirection::kBackwardWeight), Exactly(9));
}

TEST(Calibration, BetweenTwoItLiesOnTheLineWithTheLargerAsUpperEnd) {
  const Calibration calibration = With("1:100 4:400 8:200");
  EXPECT_EQ(Forward(calibration, 3), (Workspace{300, 400}));
  EXPECT_EQ(Forward(calibration, 2), Exactly(200)) << "measured, and left out as it is on the line";
}

TEST(Calibration, WhereItFallsNothingBetweenIsABound) {
  const Calibration calibration = With("1:100 4:400 8:200");
  // Up to some batch the engine of 4 goes on: 100 for each of the batch. Then there is that of 8.
  EXPECT_EQ(Forward(calibration, 6), (Workspace{150, 600}));
}

TEST(Calibration, TheUpperEndIsNeverBelowAMeasuredNeighbour) {
  for (const char* points : {"1:0 4:0 8:900", "1:900 4:0 8:900", "1:900 4:900 8:0", "1:5 8:40"}) {
    const Calibration calibration = With(points);
    for (const std::int64_t n : {3, 5, 6, 7}) {
      const Workspace between = *Forward(calibration, n);
      EXPECT_LE(between.likely, between.upper);
      for (const std::int64_t measured : {n < 4 ? 2 : 4, n < 4 ? 4 : 8}) {
        EXPECT_GE(between.upper, Forward(calibration, measured)->likely) << points << " at " << n;
      }
    }
  }
}

TEST(Calibration, BeyondTheLastOnlyAlongAClearLine) {
  EXPECT_EQ(Forward(With("1:100 8:800 32:3200"), 64), Exactly(6400));
  EXPECT_EQ(Forward(With("1:100 8:800 32:3200"), 128), Exactly(12'800));
  EXPECT_EQ(Forward(With("1:100 8:800 32:3200"), 129), std::nullopt) << "too far";
  EXPECT_EQ(Forward(With("1:100 4:800 6:3200"), 8), std::nullopt) << "who knows how that goes on";
  EXPECT_EQ(Forward(With("8:100"), 16), std::nullopt) << "one point is no line";
  EXPECT_EQ(Forward(With("1:900 8:100"), 32), (Workspace{0, 400})) << "no less than nothing";
}

TEST(Calibration, BelowTheFirstIsUnknown) {
  EXPECT_EQ(Forward(With("4:100 8:200"), 2), std::nullopt);
}

TEST(Calibration, OtherShapesAreUnknown) {
  const Calibration calibration = With("1:100");
  ConvShape other = Shape(1);
  other.stride_w = 2;
  EXPECT_EQ(calibration.Find(other, ConvDirection::kForward), std::nullopt);
  other = Shape(1);
  other.transposed = true;
  EXPECT_EQ(calibration.Find(other, ConvDirection::kForward), std::nullopt);
  other = Shape(1);
  other.channels_last = true;
  EXPECT_EQ(calibration.Find(other, ConvDirection::kForward), std::nullopt);
}

TEST(Calibration, Fp16FallsBackOnBf16AndFp32DoesNot) {
  ConvShape half = Shape(1);
  half.element_bytes = 2;
  half.is_fp16 = true;
  EXPECT_EQ(With("1:100", "bfloat16").Find(half, ConvDirection::kForward), Exactly(100));
  EXPECT_EQ(With("1:100", "float16").Find(half, ConvDirection::kForward), Exactly(100));
  half.is_fp16 = false;
  EXPECT_EQ(With("1:100", "float16").Find(half, ConvDirection::kForward), std::nullopt);
  EXPECT_EQ(Forward(With("1:100", "bfloat16"), 1), std::nullopt);
}

TEST(Calibration, TheBuiltInOneIsForTheH200) {
  const std::shared_ptr<const Calibration> h200 = Calibration::BuiltIn("H200");
  ASSERT_NE(h200, nullptr);
  EXPECT_GT(h200->size(), 1000u);
  EXPECT_EQ(Calibration::BuiltIn("RTX 4090"), nullptr);
  EXPECT_EQ(Calibration::BuiltIn(""), nullptr);
}

TEST(Calibration, OtherFilesAreRefused) {
  for (const char* text : {"", "{}", "[]", "{\"schema\": 1}", "\x80\x04]",
                           "{\"schema\": \"plimsoll.calibration/1\"}"}) {
    const Result<Calibration> read = Read(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().message, "this is not a calibration file") << text;
    EXPECT_NE(read.error().hint.find("plimsoll.calibrate"), std::string::npos);
  }
}

void ExpectDamaged(const std::string& text) {
  const Result<Calibration> read = Read(text);
  ASSERT_FALSE(read.ok()) << text;
  EXPECT_EQ(read.error().message, "the calibration file is damaged") << text;
}

std::string WholeFile() {
  return Signed(Header() + "float32" + kKey + "\t0\t1:100 8:800\t1:7\t1:9\ntime mm x\t0 5.0\n");
}

TEST(Calibration, AFileThatIsCutShortAnywhereIsRefused) {
  const std::string whole = WholeFile();
  ASSERT_TRUE(Read(whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Read(whole.substr(0, size)).ok()) << size;
  }
  ExpectDamaged(whole + "float32" + kKey + "\t0\t1:1\t\t\n");
}

TEST(Calibration, AFileWithOneOtherByteIsRefused) {
  const std::string whole = WholeFile();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\0', '7', '\n', '\xff'}) {
      std::string spoiled = whole;
      if (spoiled[at] == value) continue;
      spoiled[at] = value;
      EXPECT_FALSE(Read(spoiled).ok()) << at;
    }
  }
}

// A file that somebody made, checksum and all.
TEST(Calibration, FiguresThatAreNoneAreRefused) {
  for (const char* batches : {"[1]", "7", "{}", "[[1.5]]", "[[1e300]]", "[[-1]]", "[[2, 1]]",
                              "[[1, 1]]", "[[\"1\"]]", "[[18446744073709551615]]", "[[null]]"}) {
    ExpectDamaged(Signed(std::string("{\"schema\": \"plimsoll.calibration/2\", \"gpu\": \"H200\", "
                                     "\"batches\": ") +
                         batches + "}\n"));
  }
  ExpectDamaged(Signed("{\"schema\": \"plimsoll.calibration/2\", \"gpu\": 7, \"batches\": []}\n"));
  for (const char* points :
       {":", "1", "1:", ":1", "x:y", "1:1:1", "  ", "1.5:1", "1:1.5", "2:1 1:1", "1:-1", "-1:1",
        "1:99999999999999999999", "99999999999:1"}) {
    ExpectDamaged(Signed(Header() + "float32" + kKey + "\t0\t" + points + "\t\t\n"));
  }
  for (const char* line : {"", "\t", "\t0", "\t9\t1:1\t\t", "\t-1\t1:1\t\t", "\t0\t1:1\t\t\t"}) {
    ExpectDamaged(Signed(Header() + "float32" + kKey + line + "\n"));
  }
  EXPECT_EQ(Forward(With(""), 1), std::nullopt) << "an empty cell was not measured";
}

TEST(Calibration, HasTheContextWhereItWasMeasured) {
  const auto with = [](const std::string& context) {
    return Read(
        Signed("{\"schema\": \"plimsoll.calibration/2\", \"gpu\": \"H200\", "
               "\"batches\": [], \"context\": " +
               context + "}\n"));
  };
  const Result<Calibration> read = with("{\"bare\": 440401920, \"training\": 565182464}");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->size(), 0);
  EXPECT_EQ(read->context()->bare, 440401920);
  EXPECT_EQ(read->context()->training, 565182464);
  EXPECT_FALSE(With("1:1").context());
  for (const char* context : {"7", "[]", "{}", "{\"bare\": 1}", "{\"bare\": 2, \"training\": 1}",
                              "{\"bare\": -1, \"training\": 1}", "{\"bare\": 1.5, \"training\": 2}",
                              "{\"bare\": 1, \"training\": 99999999999999}"}) {
    EXPECT_FALSE(with(context).ok()) << context;
  }
}

TEST(Calibration, WhatTheHostTakes) {
  const auto with = [](const std::string& host) {
    return Read(
        Signed("{\"schema\": \"plimsoll.calibration/2\", \"gpu\": \"H200\", "
               "\"batches\": [], \"host\": " +
               host + "}\n"));
  };
  const std::string all =
      "\"backward\": 20, \"list\": 40, \"entry\": 1.5, \"loop\": 9, \"step\": 250, "
      "\"checkpoint\": 300, \"saved\": 12.5}";
  const Result<Calibration> read = with("{\"forward\": 30.5, " + all);
  ASSERT_TRUE(read.ok());
  ASSERT_TRUE(read->host());
  EXPECT_EQ(read->host()->forward, 30.5);
  EXPECT_EQ(read->host()->saved, 12.5);
  EXPECT_TRUE(read->host()->measured);
  EXPECT_FALSE(With("1:1").host());
  for (const std::string& host :
       {std::string("7"), std::string("{}"), "{" + all, "{\"forward\": -1, " + all,
        "{\"forward\": 1e9, " + all, "{\"forward\": \"30\", " + all}) {
    EXPECT_FALSE(with(host).ok()) << host;
  }
}

}  // namespace
}  // namespace plimsoll::calibration_test
