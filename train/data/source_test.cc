#include "train/data/source.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/data/folder_for_tests.h"
#include "train/data/image_folder.h"
#include "train/data/synthetic.h"
#include "train/data/text_file.h"

namespace plimsoll::train::source_test {
namespace {

using Shape = std::vector<std::int64_t>;

Batch Get(const Source& source, const std::vector<std::int64_t>& indices) {
  return source.Get(indices, at::TensorOptions(at::kCPU));
}

/// One pixel of a grey.
std::string Pgm(unsigned char grey) {
  return "P5 1 1 255\n" + std::string(1, static_cast<char>(grey));
}

TEST(ImageFolder, NumbersFoldersByName) {
  const FolderForTests folder;
  folder.Write("dogs/1.pgm", Pgm(255));
  folder.Write("cats/2.pgm", Pgm(0));
  folder.Write("cats/1.ppm", Pgm(51));
  folder.Write("cats/notes.txt", "no image");
  folder.Write("readme.txt", "no folder");
  const ImageFolder source(folder.path(), {.height = 2, .width = 3});
  EXPECT_EQ(source.classes(), (std::vector<std::string>{"cats", "dogs"}));
  ASSERT_EQ(source.size(), 3);
  const Batch batch = Get(source, {2, 0, 1});
  EXPECT_EQ(batch.tensors[0].sizes(), (Shape{3, 3, 2, 3}));
  EXPECT_TRUE(torch::equal(batch.tensors[1], torch::tensor({1, 0, 0}, at::kLong)));
  const at::Tensor expected = torch::tensor({1.0F, -0.6F, -1.0F}).view({3, 1, 1, 1});
  EXPECT_TRUE(torch::allclose(batch.tensors[0], expected.expand({3, 3, 2, 3})));
}

TEST(ImageFolder, SaysWhatIsMissing) {
  const FolderForTests folder;
  EXPECT_NE(ErrorOf<DataError>([&] { ImageFolder{folder.path()}; }).find("has no images"),
            std::string::npos);
  EXPECT_NE(ErrorOf<DataError>([&] { ImageFolder{folder.path() / "not"}; }).find("not: "),
            std::string::npos);
}

TEST(SegmentationFolder, FindsTheMaskOfAnImage) {
  const FolderForTests folder;
  folder.Write("images/a.ppm", Pgm(0));
  folder.Write("images/b.ppm", Pgm(255));
  folder.Write("masks/a.pgm", Pgm(1));
  EXPECT_NE(ErrorOf<DataError>([&] { SegmentationFolder(folder.path(), 2); }).find("b.ppm"),
            std::string::npos);
  folder.Write("masks/b.pgm", Pgm(255));
  const SegmentationFolder source(folder.path(), 2, {.height = 16, .width = 16, .channels = 1});
  const Batch batch = Get(source, {0, 1});
  EXPECT_EQ(batch.tensors[0].sizes(), (Shape{2, 1, 16, 16}));
  EXPECT_TRUE(torch::equal(batch.tensors[1], torch::ones({2, 16, 16}, at::kLong)));
  const SegmentationFolder more(folder.path(), 3);
  EXPECT_NE(ErrorOf<DataError>([&] { Get(more, {1}); }).find("b.pgm: has a pixel of class 255"),
            std::string::npos);
}

TEST(TextFile, CutsWindows) {
  const FolderForTests folder;
  const TextFile source(folder.Write("text", "abcdefgh"), 3);
  ASSERT_EQ(source.size(), 2);
  const Batch batch = Get(source, {1, 0});
  EXPECT_TRUE(
      torch::equal(batch.tensors[0], torch::tensor({{'d', 'e', 'f'}, {'a', 'b', 'c'}}, at::kLong)));
  EXPECT_TRUE(
      torch::equal(batch.tensors[1], torch::tensor({{'e', 'f', 'g'}, {'b', 'c', 'd'}}, at::kLong)));
  EXPECT_THROW(Get(source, {2}), c10::IndexError);
}

TEST(TextFile, SaysWhenItIsTooShort) {
  const FolderForTests folder;
  const auto file = folder.Write("text", "abc");
  EXPECT_NE(ErrorOf<DataError>([&] { TextFile(file, 3); }).find("3 bytes"), std::string::npos);
  const auto empty = folder.Write("empty", "");
  EXPECT_NE(ErrorOf<DataError>([&] { TextFile(empty, 3); }).find("empty: "), std::string::npos);
  EXPECT_NE(ErrorOf<DataError>([&] { TextFile(folder.path() / "no", 3); }).find("no: "),
            std::string::npos);
}

void ExpectSameForSameNumbers(const Source& source, const Source& same, const Source& other) {
  const Batch together = Get(source, {4, 1, 3});
  const Batch alone = Get(same, {3});
  const Batch different = Get(other, {3});
  for (std::size_t i = 0; i < together.tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(together.tensors[i][2], alone.tensors[i][0]));
  }
  EXPECT_FALSE(torch::equal(alone.tensors[0], different.tensors[0]));
  EXPECT_FALSE(torch::equal(together.tensors[0][0], together.tensors[0][1]));
}

TEST(Synthetic, DependsOnSeedAndNumberOnly) {
  const auto images = [](auto make, std::uint64_t seed) {
    return make({.seed = seed, .channels = 1, .height = 16, .width = 8, .classes = 4});
  };
  for (const auto make : {SyntheticImages, SyntheticMasks}) {
    ExpectSameForSameNumbers(*images(make, 1), *images(make, 1), *images(make, 2));
  }
  ExpectSameForSameNumbers(*SyntheticText({.seed = 1}), *SyntheticText({.seed = 1}),
                           *SyntheticText({.seed = 2}));
  ExpectSameForSameNumbers(*SyntheticVectors({.seed = 1}), *SyntheticVectors({.seed = 1}),
                           *SyntheticVectors({.seed = 2}));
}

TEST(Synthetic, HasShapesForTheModels) {
  const Batch images = Get(*SyntheticImages({}), {0, 1});
  EXPECT_EQ(images.tensors[0].sizes(), (Shape{2, 3, 64, 64}));
  EXPECT_EQ(images.tensors[1].sizes(), (Shape{2}));
  const Batch masks = Get(*SyntheticMasks({.classes = 3}), {0, 1});
  EXPECT_EQ(masks.tensors[1].sizes(), (Shape{2, 64, 64}));
  EXPECT_EQ(masks.tensors[1].max().item<std::int64_t>(), 2);
  const Batch text = Get(*SyntheticText({}), {0, 999});
  EXPECT_TRUE(torch::equal(text.tensors[0].slice(1, 1), text.tensors[1].slice(1, 0, -1)));
  EXPECT_LT(text.tensors[0].max().item<std::int64_t>(), 256);
  EXPECT_THROW(Get(*SyntheticVectors({}), {1000}), c10::IndexError);
}

}  // namespace
}  // namespace plimsoll::train::source_test
