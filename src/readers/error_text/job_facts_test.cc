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

TEST(JobFactReader, TheStageOfZero) {
  EXPECT_EQ(Read("[print]   zero_optimization_stage ...... 2\n").zero_stage, 2);
  EXPECT_EQ(Read("\"zero_optimization\": {\n    \"stage\": 3,\n").zero_stage, 3);
  EXPECT_EQ(Read("Creating fp16 ZeRO stage 1 optimizer\n").zero_stage, 1);
  EXPECT_EQ(Read("run: train.py --zero_stage=2\n").zero_stage, 2);
  EXPECT_TRUE(Read("run: train.py --zero_stage=2\n").signs.frameworks.Has(Framework::kDeepSpeed));
  EXPECT_FALSE(Read("stage 2\n").zero_stage);
}

TEST(JobFactReader, WhereTheOptimizerIs) {
  EXPECT_TRUE(Read("\"offload_optimizer\": {\"device\": \"cpu\"}\n").signs.offloads_optimizer);
  EXPECT_FALSE(Read("offload_optimizer=None device cpu_offload=None\n").signs.offloads_optimizer);
}

TEST(JobFactReader, EarlierSteps) {
  EXPECT_TRUE(Read("[Rank 0] step=10, skipped=0, lr=[1e-05]\n").signs.stepped_before);
  EXPECT_TRUE(Read("step 12 | loss 3.21\n").signs.stepped_before);
  EXPECT_TRUE(Read("{'loss': 1.2, 'epoch': 0.1}\n").signs.stepped_before);
  EXPECT_TRUE(Read(" 3%|# | 30/1000 [00:10<05:01, loss=2.1]\n").signs.stepped_before);
  EXPECT_TRUE(Read("\x1b[31mstep: 40  \x1b[32mloss:  6.21734  \x1b[38;2;180;60;0mgrad_norm: 1.1\n")
                  .signs.stepped_before)
      << "of torchtitan, in colours";
  EXPECT_FALSE(Read("\x1b[31mstep:  1  \x1b[32mloss: 12.21734\n").signs.stepped_before);
  EXPECT_FALSE(Read("step 0 | loss 3.21\n").signs.stepped_before);
  EXPECT_FALSE(Read("Loading shards: 2/2 [00:10<00:00]\n").signs.stepped_before);
  EXPECT_FALSE(ReadOne(std::string(kRanOut) + "step 12 | loss 3.21\n").signs.stepped_before);
}

TEST(JobFactReader, Trainers) {
  const OomMessage hf = Read(
      "***** Running training *****\n  Instantaneous batch size per device = 8\n"
      "  Gradient Accumulation steps = 2\n");
  EXPECT_TRUE(hf.signs.frameworks.Has(Framework::kHfTrainer));
  EXPECT_EQ(hf.device_batch, 8);
  EXPECT_EQ(hf.accumulation, 2);
  EXPECT_FALSE(Read("run_clm_no_trainer.py\n***** Running training *****\n")
                   .signs.frameworks.Has(Framework::kHfTrainer));
  EXPECT_TRUE(
      Read("GPU available: True (cuda), used: True\n").signs.frameworks.Has(Framework::kLightning));
}

TEST(JobFactReader, WhatASleepingEngineKept) {
  const OomMessage m = Read(
      "INFO Sleep mode freed 50.00 GiB memory, 9.00 GiB memory is still in use.\n"
      "INFO Sleep mode freed 61.50 GiB memory, 7.25 GiB memory is still in use.\n");
  ASSERT_TRUE(m.engine_sleep);
  EXPECT_EQ(m.engine_sleep->freed, 61 * kGiB + kGiB / 2) << "the last one";
  EXPECT_EQ(m.engine_sleep->still_in_use, 7 * kGiB + kGiB / 4);
  EXPECT_EQ(Read("INFO Estimated CUDA graph memory: -35.12 GiB total\n").graph_estimate,
            -static_cast<Bytes>(35.12 * double(kGiB)));
  EXPECT_EQ(Read("Estimated CUDA graph memory: \u22120.50 GiB total\n").graph_estimate, -kGiB / 2);
  EXPECT_EQ(Read("Estimated CUDA graph memory: 1.50 GiB total\n").graph_estimate, kGiB * 3 / 2);
  EXPECT_FALSE(Read("Estimated CUDA graph memory: unknown\n").graph_estimate);
  EXPECT_FALSE(Read("Sleep mode freed some memory\n").engine_sleep);
  const OomMessage later =
      ReadOne(std::string(kRanOut) +
              "Sleep mode freed 50.00 GiB memory, 9.00 GiB memory is still in use.\n");
  EXPECT_FALSE(later.engine_sleep) << "it slept after the message";
}

TEST(JobFactReader, TheModelOfAServer) {
  EXPECT_EQ(Read("engine (v0.10.2) with config: model='Qwen/Qwen3-8B', dtype=x\n").model,
            "Qwen/Qwen3-8B");
  EXPECT_EQ(Read("$ vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 4\n").model,
            "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(Read("non-default args: {'port': 8000, 'model': 'a/b'}\n").model, "a/b");
  EXPECT_EQ(Read("Starting to load model meta-llama/Llama-3.1-8B...\n").model,
            "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(Read("$ vllm serve $(reboot)\n").model, "");
}

constexpr std::string_view kKilled =
    "kernel: Out of memory: Killed process 51877 (python) total-vm:55400488kB, "
    "anon-rss:14005332kB, "
    "file-rss:4212kB, shmem-rss:2116kB\n";

TEST(JobFactReader, TheHostBeforeItWasFull) {
  const OomMessage m = ReadOne(
      "[utils.py:787:see_memory_usage] CPU Virtual Memory:  used = 211.75 GB, percent = 42.0%\n"
      "[utils.py:787:see_memory_usage] CPU Virtual Memory:  used = 489.5 GB, percent = 97.1%\n" +
      std::string(kKilled));
  ASSERT_TRUE(m.host_use);
  EXPECT_EQ(m.host_use->first.used, 847 * kGiB / 4);
  EXPECT_EQ(m.host_use->second.used, 979 * kGiB / 2);
  EXPECT_DOUBLE_EQ(m.host_use->second.percent, 97.1);
  EXPECT_FALSE(ReadOne("CPU Virtual Memory:  used = much, percent = 42.0%\n" + std::string(kKilled))
                   .host_use);
}

TEST(JobFactReader, TheKernelsTableOfTasks) {
  const OomMessage m = ReadOne(
      "kernel: [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name\n"
      "kernel: [   1203]     0  1203    74211     1320   176128        0             0 systemd\n"
      "[12.5] [  51876]  1000 51876 13850122  3499840 31457280    70501             0 python\n"
      "kernel: [  51877]  1000 51877 13850122  3502915 31457280    70012             0 python\n" +
      std::string(kKilled));
  ASSERT_EQ(m.tasks.size(), 2U);
  EXPECT_EQ(m.tasks[0].name, "python");
  EXPECT_EQ(m.tasks[0].processes, 2);
  EXPECT_EQ(m.tasks[0].bytes, (3499840 + 3502915) * 4 * kKiB);
}

}  // namespace
}  // namespace plimsoll::job_facts_test
