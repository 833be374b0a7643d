// What is told of the job by lines that stand anywhere in its log.
#include <gtest/gtest.h>

#include "readers/error_text/testing.h"

namespace plimsoll::job_facts_test {
namespace {

constexpr std::string_view kRanOut =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 301.44 MiB is free.\n";

/// Of a log in which the lines stand far above the message.
OomMessage Read(const std::string& lines) {
  return ReadOne(lines + std::string(100'000, '.') + "\n" + std::string(kRanOut));
}

TEST(JobFacts, TheStageOfZero) {
  EXPECT_EQ(Read("[print]   zero_optimization_stage ...... 2\n").zero_stage, 2);
  EXPECT_EQ(Read("\"zero_optimization\": {\n    \"stage\": 3,\n").zero_stage, 3);
  EXPECT_EQ(Read("Creating fp16 ZeRO stage 1 optimizer\n").zero_stage, 1);
  EXPECT_EQ(Read("run: train.py --zero_stage=2\n").zero_stage, 2);
  EXPECT_TRUE(Read("run: train.py --zero_stage=2\n").signs.deepspeed);
  EXPECT_FALSE(Read("stage 2\n").zero_stage);
}

TEST(JobFacts, WhereTheOptimizerIs) {
  EXPECT_TRUE(Read("\"offload_optimizer\": {\"device\": \"cpu\"}\n").signs.offloads_optimizer);
  EXPECT_FALSE(Read("offload_optimizer=None device cpu_offload=None\n").signs.offloads_optimizer);
}

TEST(JobFacts, EarlierSteps) {
  EXPECT_TRUE(Read("[Rank 0] step=10, skipped=0, lr=[1e-05]\n").signs.stepped_before);
  EXPECT_TRUE(Read("step 12 | loss 3.21\n").signs.stepped_before);
  EXPECT_TRUE(Read("{'loss': 1.2, 'epoch': 0.1}\n").signs.stepped_before);
  EXPECT_TRUE(Read(" 3%|# | 30/1000 [00:10<05:01, loss=2.1]\n").signs.stepped_before);
  EXPECT_FALSE(Read("step 0 | loss 3.21\n").signs.stepped_before);
  EXPECT_FALSE(Read("Loading shards: 2/2 [00:10<00:00]\n").signs.stepped_before);
  EXPECT_FALSE(ReadOne(std::string(kRanOut) + "step 12 | loss 3.21\n").signs.stepped_before);
}

TEST(JobFacts, Trainers) {
  const OomMessage hf = Read(
      "***** Running training *****\n  Instantaneous batch size per device = 8\n"
      "  Gradient Accumulation steps = 2\n");
  EXPECT_TRUE(hf.signs.hf_trainer);
  EXPECT_EQ(hf.device_batch, 8);
  EXPECT_EQ(hf.accumulation, 2);
  EXPECT_FALSE(Read("run_clm_no_trainer.py\n***** Running training *****\n").signs.hf_trainer);
  EXPECT_TRUE(Read("GPU available: True (cuda), used: True\n").signs.lightning);
}

TEST(JobFacts, TheModelOfAServer) {
  EXPECT_EQ(Read("engine (v0.10.2) with config: model='Qwen/Qwen3-8B', dtype=x\n").model,
            "Qwen/Qwen3-8B");
  EXPECT_EQ(Read("$ vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 4\n").model,
            "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(Read("non-default args: {'port': 8000, 'model': 'a/b'}\n").model, "a/b");
  EXPECT_EQ(Read("$ vllm serve $(reboot)\n").model, "");
}

}  // namespace
}  // namespace plimsoll::job_facts_test
