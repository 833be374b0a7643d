#include "timeline/framework.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace plimsoll::framework_test {
namespace {

TEST(Framework, IsToldByTheFileOfAFrame) {
  const auto of = [](std::string_view path) { return FrameworksOfFile(path).List(); };
  using List = std::vector<Framework>;
  const std::string site = "/v/lib/python3.12/site-packages/";
  EXPECT_EQ(of(site + "trl/trainer/sft_trainer.py"),
            (List{Framework::kTrl, Framework::kHfTrainer}));
  EXPECT_EQ(of(site + "transformers/trainer.py"), List{Framework::kHfTrainer});
  EXPECT_EQ(of(site + "recipes/lora_finetune_single_device.py"), List{Framework::kTorchtune});
  EXPECT_EQ(of("C:\\v\\Lib\\site-packages\\peft\\peft_model.py"), List{Framework::kPeft});
  EXPECT_EQ(of("torchtitan/train.py"), List{Framework::kTorchtitan});
  EXPECT_EQ(of(site + "megatron/core/transformer/mlp.py"), List{});
  EXPECT_EQ(of("/home/ana/train.py"), List{});
  EXPECT_EQ(of(site + "transformers/models/llama/modeling_llama.py"), List{});
}

TEST(Framework, TheOutermostComesFirst) {
  FrameworkSet found;
  found.Add(Framework::kDeepSpeed);
  found.Add(Framework::kAxolotl);
  EXPECT_EQ(found.List(), (std::vector<Framework>{Framework::kAxolotl, Framework::kHfTrainer,
                                                  Framework::kDeepSpeed}));
  found.Remove(Framework::kHfTrainer);
  EXPECT_FALSE(found.Has(Framework::kHfTrainer));
}

TEST(Framework, EachIsFoundInALog) {
  std::set<Framework> named;
  for (const FrameworkPhrase& phrase : FrameworkPhrases()) named.insert(phrase.framework);
  EXPECT_EQ(named.size() + 1, kFrameworkCount);
}

}  // namespace
}  // namespace plimsoll::framework_test
