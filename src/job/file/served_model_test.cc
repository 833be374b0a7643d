#include "job/file/served_model.h"

#include <gtest/gtest.h>

#include <fstream>

namespace plimsoll::served_model_test {
namespace {

Result<ServedModel> Read(const std::string& text) {
  const std::string path = testing::TempDir() + "served_model.json";
  std::ofstream(path) << text;
  return ReadServedModel(path);
}

// The numbers of public models, with the parameters that their makers tell.
TEST(ServedModel, CountsWhatTheMakersTell) {
  const Result<ServedModel> llama = Read(
      R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ(llama->name, "llama");
  EXPECT_EQ(llama->weights / 2, 8'030'261'248);
  EXPECT_EQ(llama->token, 128 * kKiB);
  const Result<ServedModel> mixture = Read(
      R"({"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000, "num_local_experts": 8,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336})");
  EXPECT_NEAR(double(mixture->weights) / 2, 46.7e9, 0.05e9);
  const Result<ServedModel> gpt2 = Read(
      R"({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "torch_dtype": "float32"})");
  EXPECT_NEAR(double(gpt2->weights) / 4, 124e6, 1e6);
}

TEST(ServedModel, WhatIsNoConfigurationIsRefused) {
  EXPECT_FALSE(Read("{}").ok());
  EXPECT_FALSE(Read("[1]").ok());
  EXPECT_FALSE(Read(R"({"hidden_size": -1, "num_hidden_layers": 2, "vocab_size": 3})").ok());
  EXPECT_FALSE(ReadServedModel("/no/such/config.json").ok());
}

}  // namespace
}  // namespace plimsoll::served_model_test
