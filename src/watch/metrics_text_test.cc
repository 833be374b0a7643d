#include "watch/metrics_text.h"

#include <gtest/gtest.h>

namespace plimsoll::metrics_text_test {
namespace {

TEST(MetricsText, GpusAndProcessesAreReadBack) {
  const auto gpus = ReadMetrics(
      "# HELP plimsoll_gpu_memory_total_bytes Memory of the GPU.\n"
      "plimsoll_gpu_memory_total_bytes{gpu=\"1\",uuid=\"GPU-b\",name=\"H200 \\\"x\\\"\"} 150\n"
      "plimsoll_gpu_memory_used_bytes{gpu=\"1\",uuid=\"GPU-b\",name=\"H200\"} 1.2e+02\n"
      "plimsoll_gpu_memory_free_bytes{gpu=\"1\",uuid=\"GPU-b\",name=\"H200\"} 30\r\n"
      "plimsoll_gpu_busy_ratio{gpu=\"1\",uuid=\"GPU-b\",name=\"H200\"} 0.55\n"
      "plimsoll_process_memory_used_bytes{gpu=\"1\",pid=\"7\",rank=\"3\",program=\"a\"} 90\n"
      "plimsoll_process_memory_reserved_bytes{gpu=\"1\",pid=\"7\",rank=\"3\",program=\"a\"} 80\n"
      "plimsoll_process_optimizer_steps_total{gpu=\"1\",pid=\"7\",rank=\"\",program=\"a\"} 12\n"
      "node_load1{} 3\n");
  ASSERT_TRUE(gpus);
  ASSERT_EQ(gpus->size(), 1u);
  const WatchedGpu& gpu = gpus->front();
  EXPECT_EQ(gpu.index, 1);
  EXPECT_EQ(gpu.memory->total, 150);
  EXPECT_EQ(gpu.memory->used, 120);
  EXPECT_EQ(gpu.busy, 55);
  ASSERT_EQ(gpu.processes.size(), 1u);
  EXPECT_EQ(gpu.processes[0].used, 90);
  EXPECT_EQ(gpu.processes[0].reported->reserved, 80);
  EXPECT_EQ(gpu.processes[0].optimizer_steps, 12);
  EXPECT_EQ(gpu.processes[0].program, "a");
}

TEST(MetricsText, WhatNoMachineHasIsPassedOver) {
  const auto gpus = ReadMetrics(
      "plimsoll_gpu_memory_total_bytes{gpu=\"0\",name=\"x\"} 1e300\n"
      "plimsoll_gpu_memory_total_bytes{gpu=\"-1\"} 5\n"
      "plimsoll_gpu_memory_total_bytes{gpu=\"0\",name=\"x} 5\n"
      "plimsoll_gpu_memory_total_bytes{gpu=\"0\" 5\n"
      "plimsoll_gpu_memory_total_bytes{gpu=\"0\"} nan\n"
      "plimsoll_gpu_memory_total_bytes\n"
      "plimsoll_process_memory_used_bytes{gpu=\"0\",pid=\"0\"} 5\n"
      "plimsoll_process_memory_used_bytes{gpu=\"0\",pid=\"7\"} 5\n");
  ASSERT_TRUE(gpus);
  EXPECT_TRUE(gpus->empty()) << "a process of a GPU that is not told of";
}

TEST(MetricsText, AnotherServersAnswerIsSaidToBeThat) {
  EXPECT_FALSE(ReadMetrics("node_load1 3\n"));
  EXPECT_FALSE(ReadMetrics(""));
  EXPECT_TRUE(ReadMetrics("# HELP plimsoll_gpu_memory_total_bytes Memory of the GPU.\n"));
}

}  // namespace
}  // namespace plimsoll::metrics_text_test
