#include "hardware/gpu.h"

#include <gtest/gtest.h>

#include <set>

namespace plimsoll::gpu_test {
namespace {

std::string NameOf(std::string_view text) {
  const Result<Gpu> gpu = FindGpu(text);
  return gpu ? gpu->name : "error: " + gpu.error().ToLine();
}

TEST(FindGpu, TakesEverySpelling) {
  for (const char* text : {"RTX 4090", "rtx4090", "rtx-4090", "4090", "NVIDIA GeForce RTX 4090"}) {
    EXPECT_EQ(NameOf(text), "RTX 4090") << text;
  }
  EXPECT_EQ(NameOf("h100"), "H100 SXM");
  EXPECT_EQ(NameOf("NVIDIA H100 80GB HBM3"), "H100 SXM");
  EXPECT_EQ(NameOf("NVIDIA H100 PCIe"), "H100 PCIe");
  EXPECT_EQ(NameOf("A100-80GB"), "A100 80GB SXM");
  EXPECT_EQ(NameOf("NVIDIA A100 80GB PCIe"), "A100 80GB PCIe");
  EXPECT_EQ(NameOf("NVIDIA A100-SXM4-40GB"), "A100 40GB SXM");
  EXPECT_EQ(NameOf("Tesla V100-SXM2-16GB"), "V100 16GB SXM");
  EXPECT_EQ(NameOf("Tesla T4"), "T4");
  EXPECT_EQ(NameOf("NVIDIA RTX 6000 Ada Generation"), "RTX 6000 Ada");
  EXPECT_EQ(NameOf("3080"), "RTX 3080 10GB");
  EXPECT_EQ(NameOf("a6000"), "RTX A6000");
}

TEST(FindGpu, FindsEveryCardByAllItsNames) {
  for (const Gpu& gpu : Gpus()) {
    EXPECT_EQ(NameOf(gpu.name), gpu.name);
    for (const std::string& alias : gpu.aliases) EXPECT_EQ(NameOf(alias), gpu.name) << alias;
  }
}

TEST(FindGpu, TakesASizeForACardOfWhichNothingElseIsKnown) {
  const Gpu gpu = *FindGpu("22GiB");
  EXPECT_EQ(gpu.memory, 22 * kGiB);
  EXPECT_TRUE(gpu.assumed);
  EXPECT_EQ(gpu.like, "RTX 4090");
  EXPECT_FALSE(gpu.memory_is_measured);
  EXPECT_FALSE(FindGpu("4090")->assumed);
  EXPECT_EQ(FindGpu("80 GB")->like, "A100 80GB SXM");
  EXPECT_EQ(FindGpu("39.39GiB")->like, "A100 40GB SXM");
  EXPECT_EQ(FindGpu("6000GiB")->like, "B200");
}

TEST(FindGpu, NamesTheNearestWhereItKnowsNone) {
  EXPECT_EQ(NameOf("rtx 4095"),
            "error: there is no GPU 'rtx 4095' in the catalogue; did you mean RTX 4090, RTX 3090 "
            "or RTX 4060? plimsoll gpus lists all; a size such as 22GiB works too");
  EXPECT_NE(NameOf("a100 sxm").find("A100 40GB SXM"), std::string::npos);
  EXPECT_EQ(NameOf("toaster"),
            "error: there is no GPU 'toaster' in the catalogue; plimsoll gpus lists all; a size "
            "such as 22GiB works too");
}

TEST(FindGpu, RefusesWhatIsNoGpu) {
  for (const char* text : {"", " ", "-", "512", "1MiB", "nan", "-3GiB", "1e30", "99999TiB", "rtx",
                           "nvidia", "geforce", "\xff\xff"}) {
    EXPECT_FALSE(FindGpu(text).ok()) << text;
  }
  EXPECT_FALSE(FindGpu(std::string(100000, 'x')).ok());
}

TEST(Gpus, HaveEachAnUnambiguousName) {
  std::set<std::string> names;
  for (const Gpu& gpu : Gpus()) EXPECT_TRUE(names.insert(gpu.name).second) << gpu.name;
}

/// Slips of the pen: a figure in the wrong column or unit.
TEST(Gpus, HaveFiguresThatCanBe) {
  for (const Gpu& gpu : Gpus()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_GE(gpu.memory, 5 * kGiB);
    EXPECT_LE(gpu.memory, 280 * kGiB);
    EXPECT_GE(gpu.bandwidth, 200e9);
    EXPECT_LE(gpu.bandwidth, 8e12);
    EXPECT_GE(gpu.rates.fp16, gpu.rates.fp32);
    EXPECT_NEAR(gpu.rates.tf32.value_or(gpu.rates.fp16 / 2) / gpu.rates.fp16, 0.5, 0.02);
    EXPECT_NEAR(gpu.rates.fp8.value_or(gpu.rates.fp16 * 2) / gpu.rates.fp16, 2, 0.05);
    EXPECT_EQ(gpu.rates.bf16.has_value(), gpu.capability.major >= 8);
    EXPECT_EQ(gpu.rates.tf32.has_value(), gpu.capability.major >= 8);
    EXPECT_EQ(gpu.rates.fp8.has_value(), (gpu.capability >= ComputeCapability{8, 9}));
    EXPECT_GT(gpu.interconnect.host, 15e9);
    EXPECT_LE(gpu.context.low, gpu.context.bytes);
    EXPECT_LE(gpu.context.bytes, gpu.context.high);
    EXPECT_FALSE(gpu.assumed);
    // Lanes times clock: no card runs at less than 1.1 or more than 2.7 GHz.
    const double lanes = gpu.capability.major == 7 || (gpu.capability == ComputeCapability{8, 0}) ||
                                 (gpu.capability == ComputeCapability{6, 0})
                             ? 64
                             : 128;
    const double clock = gpu.rates.fp32 / (2 * lanes * gpu.multiprocessors);
    EXPECT_GE(clock, 1.1e9);
    EXPECT_LE(clock, 2.7e9);
  }
}

TEST(Gpus, TakeTheWorkspaceThatPyTorchTakesThere) {
  EXPECT_EQ(FindGpu("H200")->cublas_workspace, 32 * kMiB);
  EXPECT_EQ(FindGpu("H200")->cublas_workspace_before_2_12, 32 * kMiB);
  EXPECT_EQ(FindGpu("A100")->cublas_workspace, 8519680);
  EXPECT_EQ(FindGpu("4090")->cublas_workspace, 8519680);
  EXPECT_EQ(FindGpu("5090")->cublas_workspace, 32 * kMiB);
  EXPECT_EQ(FindGpu("B300")->cublas_workspace, 32 * kMiB);
  EXPECT_EQ(FindGpu("5090")->cublas_workspace_before_2_12, 8519680);
}

/// tests/data and every record of an H200: mem_get_info's total, and what is in use besides
/// reserved memory once a step has run.
TEST(Gpus, HaveTheH200AsMeasured) {
  const Gpu h200 = *FindGpu("h200");
  EXPECT_EQ(h200.memory, 150109880320);
  EXPECT_EQ(h200.context.bytes, 808255488);
  EXPECT_TRUE(h200.context.measured);
  // The estimate, without its measurement, would have been within 1 %.
  const Gpu h100 = *FindGpu("H100 SXM");
  EXPECT_NEAR(double(h100.context.bytes), double(h200.context.bytes), 8e6);
}

}  // namespace
}  // namespace plimsoll::gpu_test
