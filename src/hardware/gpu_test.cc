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
  EXPECT_EQ(NameOf("AMD Radeon RX 7900 XTX"), "RX 7900 XTX");
  EXPECT_EQ(NameOf("AMD Instinct MI300X"), "MI300X");
  EXPECT_EQ(NameOf("Quadro RTX 8000"), "Quadro RTX 8000");
  EXPECT_EQ(NameOf("NVIDIA GeForce RTX 4060 Laptop GPU"), "RTX 4060 Laptop");
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

TEST(FindGpu, TakesTheSizeOnTheBoxForTheLeastUsableMemoryOfSuchCards) {
  // No card sold with 12 GB has 12 GiB.
  const Gpu gpu = *FindGpu("12GB");
  EXPECT_EQ(gpu.memory, FindGpu("RTX 5070")->LeastMemory());
  EXPECT_LE(gpu.memory, FindGpu("RTX 3060")->LeastMemory());
  EXPECT_EQ(gpu.name, "a 12 GB GPU (least usable: RTX 5070)");
  EXPECT_TRUE(gpu.assumed);
  EXPECT_EQ(FindGpu("12 g")->memory, gpu.memory);
  EXPECT_EQ(FindGpu("12GiB")->memory, 12 * kGiB);
  // Data centre cards with ECC are 24 GB cards, too.
  EXPECT_EQ(FindGpu("24GB")->memory, FindGpu("L4")->LeastMemory());
  // A size that no card has, and no whole one, is taken as it is.
  EXPECT_EQ(FindGpu("13GB")->memory, 13 * kGiB);
  EXPECT_EQ(FindGpu("11.5GB")->memory, 23 * kGiB / 2);
  // Slices and unified memory are no cards of their size.
  EXPECT_EQ(FindGpu("128GB")->memory, 128 * kGiB);
}

TEST(FindGpu, NamesTheNearestWhereItKnowsNone) {
  EXPECT_EQ(
      NameOf("rtx 4095"),
      "error: there is no GPU 'rtx 4095' in the catalogue; did you mean RTX 4090, RTX 3090 "
      "or RTX 4060? plimsoll gpus lists all; a size of 1GiB and more, such as 22GiB, works too");
  EXPECT_NE(NameOf("a100 sxm").find("A100 40GB SXM"), std::string::npos);
  EXPECT_EQ(NameOf("toaster"),
            "error: there is no GPU 'toaster' in the catalogue; plimsoll gpus lists all; a size of "
            "1GiB and more, such as 22GiB, works too");
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
    EXPECT_GE(gpu.memory, 4 * kGiB);
    EXPECT_LE(gpu.memory, 290 * kGiB);
    EXPECT_GE(gpu.bandwidth, 190e9);
    EXPECT_LE(gpu.bandwidth, 8e12);
    EXPECT_GE(gpu.rates.fp16, gpu.rates.fp32);
    EXPECT_NEAR(gpu.rates.tf32.value_or(gpu.rates.fp16 / 2) / gpu.rates.fp16, 0.5, 0.02);
    EXPECT_NEAR(gpu.rates.fp8.value_or(gpu.rates.fp16 * 2) / gpu.rates.fp16, 2, 0.05);
    EXPECT_EQ(gpu.rates.bf16.has_value(), gpu.capability.major >= 8);
    const bool amd = gpu.vendor == GpuVendor::kAmd;
    EXPECT_EQ(amd || gpu.rates.tf32.has_value(), amd || gpu.capability.major >= 8);
    EXPECT_EQ(gpu.rates.fp8.has_value(), (gpu.capability >= ComputeCapability{8, 9}));
    EXPECT_EQ(gpu.gfx.empty(), !amd);
    EXPECT_GE(gpu.less_elsewhere, 0);
    EXPECT_GE(gpu.more_elsewhere, 0);
    EXPECT_LE(gpu.less_elsewhere, gpu.memory / 50);
    EXPECT_LE(gpu.bare.low, gpu.bare.bytes);
    EXPECT_LE(gpu.bare.bytes, gpu.bare.high);
    EXPECT_LE(gpu.bare.bytes, gpu.context.bytes);
    EXPECT_GT(gpu.interconnect.host, 15e9);
    EXPECT_LE(gpu.context.low, gpu.context.bytes);
    EXPECT_LE(gpu.context.bytes, gpu.context.high);
    EXPECT_FALSE(gpu.assumed);
    if (amd) continue;
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
  EXPECT_EQ(FindGpu("MI300X")->cublas_workspace, 128 * kMiB);
  EXPECT_EQ(FindGpu("RX 7900 XTX")->cublas_workspace, 32 * kMiB);
}

/// torch 2.10, mem_get_info: unslothai/unsloth-zoo issue 1053; ECC on GDDR6 keeps a sixteenth.
TEST(Gpus, HaveTheAdaWithAndWithoutEcc) {
  EXPECT_EQ(FindGpu("RTX 6000 Ada")->memory, 50865307648);
  const double share = double(FindGpu("RTX 6000 Ada ECC")->memory) / 50865307648.0;
  EXPECT_NEAR(share, 1 - 0.062, 0.001);
}

TEST(Gpus, SayWhatOtherDriversReport) {
  const Gpu t4 = *FindGpu("T4");
  EXPECT_EQ(t4.memory, 15095 * kMiB);
  EXPECT_NEAR(double(t4.LeastMemory()) / double(kGiB), 14.56, 0.005);
  EXPECT_NEAR(double(t4.memory + t4.more_elsewhere) / double(kGiB), 14.76, 0.005);
  EXPECT_EQ(FindGpu("H200")->LeastMemory(), FindGpu("H200")->memory);
  EXPECT_EQ(FindGpu("15GiB")->LeastMemory(), 15 * kGiB);
}

TEST(Gpus, LeaveWhatTheSystemLeavesOfUnifiedMemory) {
  const Gpu spark = *FindGpu("NVIDIA GB10");
  EXPECT_TRUE(spark.unified);
  EXPECT_NEAR(double(spark.Total()) / double(kGiB), 121.69, 0.005);
  EXPECT_NEAR(double(spark.LeastMemory()) / double(kGiB), 101.3, 0.01);
  EXPECT_NEAR(double(spark.memory + spark.more_elsewhere) / double(kGiB), 102.2, 0.01);
  EXPECT_EQ(FindGpu("dgx spark")->name, "GB10");
  EXPECT_EQ(Beside(spark, kGiB)->Total(), spark.Total());
}

}  // namespace
}  // namespace plimsoll::gpu_test
