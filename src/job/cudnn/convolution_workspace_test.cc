#include "job/cudnn/convolution_workspace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "files/input.h"

namespace plimsoll::convolution_workspace_test {
namespace {

constexpr int kH200 = 132;
constexpr std::array kDirections = {
    std::pair{ConvDirection::kForward, "forward"},
    std::pair{ConvDirection::kBackwardData, "backward_data"},
    std::pair{ConvDirection::kBackwardWeight, "backward_weight"},
};

/// Square, "same" padding.
ConvShape Square(int element_bytes, std::int64_t n, std::int64_t c, std::int64_t k,
                 std::int64_t side, std::int64_t kernel) {
  ConvShape s;
  s.element_bytes = element_bytes;
  s.n = n;
  s.c = c;
  s.k = k;
  s.h = s.w = s.ho = s.wo = side;
  s.kh = s.kw = kernel;
  s.pad_h = s.pad_w = kernel / 2;
  return s;
}

ConvShape FromRow(const nlohmann::json& row) {
  ConvShape s;
  s.element_bytes = row["dtype"] == "float32" ? 4 : 2;
  s.is_fp16 = row["dtype"] == "float16";
  s.channels_last = row["layout"] == "NHWC";
  s.n = row["input"][0];
  s.c = row["input"][1];
  s.h = row["input"][2];
  s.w = row["input"][3];
  s.k = row["output"][1];
  s.ho = row["output"][2];
  s.wo = row["output"][3];
  s.kh = row["weight"][2];
  s.kw = row["weight"][3];
  s.stride_h = s.stride_w = row["stride"];
  s.pad_h = s.pad_w = row["padding"];
  s.dilation_h = s.dilation_w = row["dilation"];
  s.groups = row["groups"];
  s.transposed = row["transposed"];
  return s;
}

std::string ClassOf(const ConvShape& s, std::string_view direction) {
  std::string kind = "k×k";
  if (s.transposed) {
    kind = "transposed";
  } else if (s.groups > 1) {
    kind = s.groups == s.c ? "depthwise" : "grouped";
  } else if (s.kh == 1 && s.kw == 1) {
    kind = "1×1";
  }
  return std::string(direction) + " " + kind + (s.element_bytes == 4 ? " fp32" : " 16 bit") +
         (s.channels_last ? " NHWC" : " NCHW");
}

/// What is released within the call.
Bytes Measured(const nlohmann::json& events) {
  Bytes sum = 0;
  for (const Bytes bytes : events) sum += bytes < 0 ? -bytes : 0;
  return sum;
}

struct Score {
  int calls = 0, close = 0, above_upper = 0;
};

/// By class, and all of them under "".
std::map<std::string, Score> ScoreSample() {
  std::map<std::string, Score> scores;
  Result<Input> input =
      Input::Open(std::string(PLIMSOLL_TEST_DATA) + "/operators/conv_sample.jsonl.xz");
  if (!input.ok()) return scores;
  std::string_view rest = input->bytes();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const nlohmann::json row = nlohmann::json::parse(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const ConvShape shape = FromRow(row);
    for (const auto& [direction, name] : kDirections) {
      const Bytes truth = Measured(row[name]);
      const Workspace guess = ConvolutionWorkspace(shape, direction, kH200);
      EXPECT_LE(guess.likely, guess.upper) << row;
      for (const std::string& key : {std::string(), ClassOf(shape, name)}) {
        Score& score = scores[key];
        ++score.calls;
        score.close += std::abs(truth - guess.likely) <= std::max(64 * kKiB, truth / 50);
        score.above_upper += truth > guess.upper;
      }
    }
  }
  return scores;
}

TEST(ConvolutionWorkspace, CopiesBothTensorsAndTheWeightInSixteenBit) {
  // Measured: 92,596,371, the three copies and 147 bytes.
  const ConvShape s = Square(2, 12, 192, 112, 112, 5);
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kForward, kH200).likely,
            2 * (12 * (192 + 112) * 112 * 112 + 192 * 112 * 25));
  ConvShape nhwc = s;
  nhwc.channels_last = true;
  EXPECT_EQ(ConvolutionWorkspace(nhwc, ConvDirection::kForward, kH200).likely, 0);
}

TEST(ConvolutionWorkspace, PadsChannelsToEight) {
  // The first layer of a ResNet with channels rounded up: 3 becomes 8.
  ConvShape s = Square(2, 64, 3, 64, 224, 7);
  s.stride_h = s.stride_w = 2;
  s.ho = s.wo = 112;
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kForward, kH200).likely,
            2 * (64 * 8 * 224 * 224 + 64 * 64 * 112 * 112 + 64 * 8 * 49));
}

TEST(ConvolutionWorkspace, WinogradGradientOfTheWeightIsExact) {
  // Measured twice: 24,182,784.
  const ConvShape s = Square(4, 16, 512, 48, 14, 3);
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kBackwardWeight, kH200).likely, 24'182'784);
}

TEST(ConvolutionWorkspace, OnePartialSumPerImageForAPointwiseWeight) {
  const ConvShape s = Square(4, 8, 128, 64, 56, 1);
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kBackwardWeight, kH200).likely,
            8 * 128 * 64 * 4);
}

TEST(ConvolutionWorkspace, TransposedIsTheGradientOfTheOrdinaryOne) {
  ConvShape up = Square(2, 4, 64, 32, 28, 4);  // 28 -> 56
  up.ho = up.wo = 56;
  up.stride_h = up.stride_w = 2;
  up.transposed = true;
  ConvShape down = up;
  down.transposed = false;
  std::swap(down.c, down.k);
  std::swap(down.h, down.ho);
  std::swap(down.w, down.wo);
  EXPECT_EQ(ConvolutionWorkspace(up, ConvDirection::kForward, kH200),
            ConvolutionWorkspace(down, ConvDirection::kBackwardData, kH200));
  EXPECT_EQ(ConvolutionWorkspace(up, ConvDirection::kBackwardWeight, kH200),
            ConvolutionWorkspace(down, ConvDirection::kBackwardWeight, kH200));
}

TEST(ConvolutionWorkspace, FoldedDepthDoublesTheRange) {
  ConvShape s = Square(4, 2, 32, 64, 64, 3);
  const Workspace flat = ConvolutionWorkspace(s, ConvDirection::kForward, kH200);
  s.volume.emplace();
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kForward, kH200),
            (Workspace{flat.likely, 2 * flat.upper}));
}

TEST(ConvolutionWorkspace, NonsenseHasNone) {
  ConvShape s = Square(4, 2, 32, 64, 64, 3);
  s.groups = 0;
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kForward, kH200), Workspace{});
  s.groups = 5;
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kForward, kH200), Workspace{});
  s.groups = 1;
  s.ho = -7;
  EXPECT_EQ(ConvolutionWorkspace(s, ConvDirection::kForward, kH200), Workspace{});
}

TEST(ConvolutionWorkspace, HugeSizesDoNotOverflow) {
  for (const std::int64_t side : {std::int64_t{1} << 20, std::int64_t{1} << 49}) {
    for (const std::int64_t kernel : {std::int64_t{1}, std::int64_t{3}, std::int64_t{11}, side}) {
      for (const int bytes : {2, 4}) {
        for (const std::int64_t groups : {std::int64_t{1}, std::int64_t{8}, side}) {
          ConvShape s = Square(bytes, side, side, side, side, kernel);
          s.groups = groups;
          for (const auto& [direction, name] : kDirections) {
            for (const int processors : {1, 132, 1 << 30}) {
              const Workspace w = ConvolutionWorkspace(s, direction, processors);
              EXPECT_GE(w.likely, 0) << name;
              EXPECT_GE(w.upper, w.likely) << name;
            }
          }
        }
      }
    }
  }
}

// A twelfth of the measured rows, taken by hash. Of all 54,249 calls 80.0 % are close, and no class
// is above its upper figure in more than 1 %. The aim was 85 %: a forest of 60 trees on a hundred
// features of the shape stops at 81.3 % on rows it has not seen.
TEST(ConvolutionWorkspace, MeasuredSample) {
  const std::map<std::string, Score> scores = ScoreSample();
  ASSERT_FALSE(scores.empty());
  const Score& all = scores.at("");
  EXPECT_EQ(all.calls, 4455);
  EXPECT_GE(all.close, all.calls * 79 / 100);
  for (const auto& [name, score] : scores) {
    if (score.calls < 50) continue;
    // One more than 1 %, since a class of the sample is small.
    EXPECT_LE(score.above_upper, score.calls / 100 + 1) << name << " of " << score.calls;
  }
}

}  // namespace
}  // namespace plimsoll::convolution_workspace_test
