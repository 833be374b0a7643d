#include "job/rules/workspace_lookup.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace plimsoll::workspace_lookup_test {
namespace {

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

constexpr const char* kKey = "float32 nchw 64,56,56 64,3,3 1,1 1,1 1,1 1";

/// One line; the views into it stay good, since the table holds its text.
AskedWorkspaces Asked(const std::string& line, std::string gpu = "H200") {
  const auto text = std::make_shared<const std::string>(line);
  AskedWorkspaces asked{.gpu = std::move(gpu), .cudnn = "9.19.0", .table = {text, {{1, 8}}}};
  EXPECT_TRUE(asked.table.Add(*text));
  return asked;
}

std::optional<Workspace> Forward(const AskedWorkspaces& asked, const ConvShape& shape) {
  return FindAsked(asked, shape, ConvDirection::kForward, 132);
}

TEST(WorkspaceLookup, AnAnswerHasRoomForWhatCudnnCannotTell) {
  const AskedWorkspaces asked = Asked(std::string(kKey) + "\t0\t1:1000000 8:8000000\t\t");
  const Workspace found = *Forward(asked, Shape(8));
  EXPECT_EQ(found.likely, 8'000'000);
  EXPECT_EQ(found.upper, 8'160'000 + 64 * kKiB);
  EXPECT_FALSE(FindAsked(asked, Shape(8), ConvDirection::kBackwardData, 132)) << "was not asked";
  EXPECT_FALSE(Forward(asked, Shape(100))) << "beyond what was asked";
}

TEST(WorkspaceLookup, ACardThatNobodyMeasuredKeepsTheRulesUpperEnd) {
  const std::string line = std::string(kKey) + "\t0\t1:0 8:0\t\t";
  const Bytes by_rule = ConvolutionWorkspace(Shape(8), ConvDirection::kForward, 132).upper;
  ASSERT_GT(by_rule, 64 * kKiB);
  EXPECT_EQ(Forward(Asked(line, "H100 SXM"), Shape(8)), (Workspace{0, by_rule}));
  EXPECT_EQ(Forward(Asked(line), Shape(8)), (Workspace{0, 64 * kKiB}));
}

TEST(WorkspaceLookup, ProductsMayBeSplitByCublas) {
  ConvShape product = Shape(8);
  product.kh = product.kw = 1;
  product.pad_h = product.pad_w = 0;
  const AskedWorkspaces asked = Asked("float32 nchw 64,56,56 64,1,1 1,1 0,0 1,1 1\t0\t\t\t1:0 8:0");
  const auto found = FindAsked(asked, product, ConvDirection::kBackwardWeight, 132);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->likely, 0);
  EXPECT_GT(found->upper, kMiB);
  EXPECT_LE(found->upper, 8 * kMiB + 64 * kKiB);
}

/// 4 frames of 14×14, (3, 1, 1): folded it is like one of 56×14 with a kernel of 3×1.
TEST(WorkspaceLookup, VolumesAreToldApartByAllTheirSizes) {
  ConvShape volume{
      .n = 8, .c = 16, .h = 56, .w = 14, .k = 32, .ho = 56, .wo = 14, .kh = 3, .kw = 1};
  volume.pad_h = 1;
  volume.volume = ConvVolume{.input = {4, 14, 14},
                             .kernel = {3, 1, 1},
                             .stride = {1, 1, 1},
                             .padding = {1, 0, 0},
                             .dilation = {1, 1, 1}};
  const std::string points = "\t0\t1:10 8:80\t\t";
  EXPECT_TRUE(
      Forward(Asked("float32 ncdhw 16,4,14,14 32,3,1,1 1,1,1 1,0,0 1,1,1 1" + points), volume));
  EXPECT_FALSE(
      Forward(Asked("float32 ncdhw 16,14,4,14 32,1,3,1 1,1,1 0,1,0 1,1,1 1" + points), volume));
  // As plimsoll.calibrate writes them.
  EXPECT_TRUE(Forward(Asked("float32 nchw 16,56,14 32,3,1 1,1 1,0 1,1 1" + points), volume));
}

TEST(WorkspaceLookup, ASearchTakesTheLargestPlanAndMayEndAtAnyThatIsTimed) {
  AskedWorkspaces asked = Asked(std::string(kKey) + "\t0\t1:0 8:0\t\t");
  EXPECT_FALSE(FindSearch(asked, Shape(8), ConvDirection::kForward)) << "PyTorch does not search";
  asked.timed = Asked(std::string(kKey) + "\t0\t1:1000000 8:8000000\t\t").table;
  asked.searched = Asked(std::string(kKey) + "\t0\t1:2000000 8:16000000\t\t").table;
  EXPECT_EQ(*Forward(asked, Shape(8)), (Workspace{0, 8'000'000}));
  const auto search = FindSearch(asked, Shape(8), ConvDirection::kForward);
  ASSERT_TRUE(search);
  EXPECT_EQ(search->largest, (Workspace{16'000'000, 16'000'000}));
  EXPECT_NE(search->key, FindSearch(asked, Shape(1), ConvDirection::kForward)->key);
}

TEST(WorkspaceLookup, AnswersAreOfOneCard) {
  Job job;
  EXPECT_EQ(AskedFor(job, *FindGpu("H200")), nullptr);
  job.asked = std::make_shared<const AskedWorkspaces>(Asked(std::string(kKey) + "\t0\t1:1\t\t"));
  EXPECT_EQ(AskedFor(job, *FindGpu("H200")), job.asked.get());
  EXPECT_EQ(AskedFor(job, *FindGpu("RTX 4090")), nullptr);
  EXPECT_EQ(AskedFor(job, *FindGpu("141GiB")), nullptr) << "nobody knows which card that is";
}

}  // namespace
}  // namespace plimsoll::workspace_lookup_test
