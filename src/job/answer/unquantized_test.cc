#include "job/answer/unquantized.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::unquantized_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;

class UnquantizedTest : public testing::Test {
 protected:
  void Add(const std::string& name, std::vector<std::int64_t> sizes, DType dtype,
           bool trainable = false) {
    std::vector<Number> numbers;
    for (const std::int64_t size : sizes) numbers.push_back(Always(size));
    Variant& variant = maker_.variant();
    variant.model_tensors.push_back({.storage = variant.storages++,
                                     .layout = maker_.AddLayout(numbers, dtype),
                                     .name = maker_.job.strings.Intern(name),
                                     .trainable = trainable});
  }
  std::optional<Unquantized> Find() {
    Setting setting;
    setting.job = std::make_shared<const Job>(CopyOf(maker_.job, 0));
    return FindUnquantized(setting);
  }

  JobMaker maker_;
};

TEST_F(UnquantizedTest, ExpertsInOneTensorAreLeftWhole) {
  for (int layer = 0; layer < 4; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer);
    Add(at + ".attn.q_proj.weight", {2 << 20, 1}, DType::kUInt8);
    Add(at + ".attn.q_proj.lora_A.weight", {16, 1 << 18}, DType::kFloat32, true);
    Add(at + ".mlp.experts.gate_up_proj", {8, 1024, 4096}, DType::kBFloat16);
    Add(at + ".norm.weight", {4096}, DType::kBFloat16);
  }
  Add("model.embed_tokens.weight", {32000, 4096}, DType::kBFloat16);
  const std::optional<Unquantized> found = Find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bits, 4);
  EXPECT_EQ(found->quantized, 4 * (2 << 20));
  ASSERT_EQ(found->whole.size(), 1);
  EXPECT_EQ(found->whole[0].name, "model.layers.*.mlp.experts.gate_up_proj");
  EXPECT_EQ(found->whole[0].count, 4);
  EXPECT_EQ(found->bytes(), Bytes{4} * 8 * 1024 * 4096 * 2);
  EXPECT_NEAR(found->share, 32.0 / 36, 1e-9) << "of 4 times 4 and 32 million";
  EXPECT_NEAR(double(found->saves()) / double(found->bytes()), 1 - (0.5 + 1.0 / 64) / 2, 1e-6);
}

TEST_F(UnquantizedTest, NothingIsSaidOfLittleAndWhereNothingIsQuantized) {
  Add("h.0.mlp.weight", {4096, 4096}, DType::kBFloat16);
  EXPECT_FALSE(Find()) << "nothing is quantized";
  Add("h.0.attn.weight", {128 << 20, 1}, DType::kUInt8);
  EXPECT_FALSE(Find()) << "16 of 272 million";
  Add("lm_head.weight", {32000, 4096}, DType::kBFloat16);
  EXPECT_FALSE(Find()) << "left whole on purpose";
  Add("h.1.mlp.weight", {8192, 8192}, DType::kInt8);
  Add("h.2.mlp.weight", {8192, 8192}, DType::kFloat16);
  ASSERT_TRUE(Find());
  EXPECT_EQ(Find()->bits, 8);
}

}  // namespace
}  // namespace plimsoll::unquantized_test
