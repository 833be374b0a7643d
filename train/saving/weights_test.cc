#include "train/saving/weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

namespace plimsoll::train::weights_test {
namespace {

namespace nn = torch::nn;

class Weights : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  static nn::Sequential Net(std::int64_t width = 4) {
    return nn::Sequential(nn::Conv2d(3, width, 3), nn::BatchNorm2d(width), nn::Linear(width, 2));
  }
  static std::string TextOf(const nn::Sequential& net) {
    std::ostringstream text;
    for (const auto& item : net->named_parameters()) text << item.key() << item.value();
    for (const auto& item : net->named_buffers()) text << item.key() << item.value();
    return text.str();
  }

  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("plimsoll_weights_" + std::to_string(getpid()));
};

TEST_F(Weights, ComeBackAsTheyWere) {
  torch::manual_seed(1);
  const nn::Sequential saved = Net();
  SaveWeights(path_, *saved);
  nn::Sequential loaded = Net();
  ASSERT_NE(TextOf(loaded), TextOf(saved));
  LoadWeights(path_, *loaded);
  EXPECT_EQ(TextOf(loaded), TextOf(saved));
}

TEST_F(Weights, OfAnotherModelChangeNothing) {
  SaveWeights(path_, *Net(8));
  nn::Sequential net = Net();
  const std::string before = TextOf(net);
  EXPECT_THROW(LoadWeights(path_, *net), c10::Error);
  SaveWeights(path_, *nn::Sequential(nn::Conv2d(3, 4, 3)));
  EXPECT_THROW(LoadWeights(path_, *net), c10::Error);
  std::ofstream(path_) << "no weights";
  EXPECT_THROW(LoadWeights(path_, *net), c10::Error);
  EXPECT_EQ(TextOf(net), before);
}

TEST_F(Weights, MayHaveOtherNamesAndTypes) {
  const auto make = [] { return nn::Sequential(nn::Conv2d(3, 4, 3), nn::Linear(4, 2)); };
  nn::Sequential half = make();
  half->to(at::kBFloat16);
  SaveWeights(path_, *half);
  struct Outer : nn::Module {
    explicit Outer(const nn::Sequential& net) { register_module("net", net); }
  };
  nn::Sequential net = make();
  Outer outer(net);
  LoadWeights(path_, outer, [](const std::string& name) { return name.substr(4); });
  EXPECT_TRUE(torch::equal(net->parameters()[0], half->parameters()[0].to(at::kFloat)));
}

}  // namespace
}  // namespace plimsoll::train::weights_test
