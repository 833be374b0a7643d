#include "hardware/context.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hardware/nccl.h"

namespace plimsoll::context_test {
namespace {

/// What one process was seen to use outside PyTorch's memory, in MiB. Lazy loading, torch 2.1 to
/// 2.11. Most are differences of an error text's figures and within 10 MiB of the truth.
struct Reading {
  const char* card;
  Bytes mib;
  const char* source;
  /// The text has the card's size and not its name.
  bool by_size = false;
};

constexpr Reading kReadings[] = {
    {"RTX 4060 Laptop", 115, "ESRSchao/EdgeRegNet #2"},
    {"T4", 135, "Zheng-Chong/CatVTON #133"},
    {"T4", 141, "FoundationVision/GenerateU #10", true},
    {"RTX 3070", 179, "meta-llama/codellama #82"},
    {"RTX A4000", 210, "DengKaiCQ/VGGT-Long #6"},
    {"P100", 303, "andimarafioti/florence2-finetuning #17", true},
    {"L4", 236, "ArcInstitute/evo2 #190"},
    {"RTX 2080 Ti", 197, "lllyasviel/FramePack #369", true},
    {"A10G", 282, "meta-pytorch/torchtune #229"},
    {"A100 80GB", 409, "HiDream-ai/VAREdit #6"},
    {"A100 40GB", 501, "TianheWu/CoSeR #10"},
    {"RTX 4090", 416, "eosphoros-ai/DB-GPT-Hub #248"},
    {"RTX 4090", 450, "Soul-AILab/SoulX-FlashTalk #5"},
    {"RTX 4090", 504, "3DTopia/Phidias-Diffusion #8"},
    {"RTX 4090", 471, "3DTopia/Phidias-Diffusion #8, a second process"},
    {"RTX 4090", 452, "chatchat-space/Langchain-Chatchat #3992", true},
    {"H100", 512, "Kwai-Keye/Keye #11", true},
    {"H100", 503, "lianqi1008/Control-GIC #6", true},
    {"H100", 532, "llm-d-incubation/llm-d-fast-model-actuation #746"},
    {"L40", 507, "QwenLM/Qwen3-VL #2097"},
    {"L40S", 419, "stepfun-ai/Step-Video-T2V #8"},
    {"RTX 6000 Ada", 426, "unslothai/unsloth-zoo #1053"},
    {"RTX 6000 Ada ECC", 429, "DINGYANB/MTVCrafter #21"},
    {"RTX 5090", 595, "Wan-Video/Wan2.1 #465"},
};

TEST(Context, IsWithinAFifthOfWhatPeopleRead) {
  double sum = 0;
  for (const Reading& reading : kReadings) {
    SCOPED_TRACE(reading.source);
    const Gpu gpu = *FindGpu(reading.card);
    const double read = double(reading.mib * kMiB);
    EXPECT_NEAR(double(gpu.bare.bytes) / read, 1, 0.2) << gpu.name;
    EXPECT_NEAR(read / double(gpu.bare.bytes), 1, 0.2) << gpu.name;
    EXPECT_LE(gpu.bare.low, reading.mib * kMiB);
    EXPECT_GE(gpu.bare.high, reading.mib * kMiB);
    EXPECT_LE(gpu.context.low, reading.mib * kMiB);
    EXPECT_GE(gpu.context.high, reading.mib * kMiB);
    sum += std::abs(double(gpu.bare.bytes) / read - 1);
  }
  EXPECT_EQ(std::size(kReadings), 24);
  EXPECT_LE(sum / double(std::size(kReadings)), 0.08);
}

/// tests/data and every record of an H200.
TEST(Context, IsTheH200sAsMeasured) {
  const Gpu h200 = *FindGpu("H200");
  EXPECT_EQ(h200.bare.bytes, 552402944);
  EXPECT_EQ(h200.context.bytes, 808255488);
  EXPECT_EQ(h200.context.low, 552402944);
  EXPECT_EQ(h200.context.high, 808255488);
  EXPECT_EQ(h200.context.basis, FigureBasis::kMeasured);
  const Gpu h100 = *FindGpu("H100");
  EXPECT_EQ(h100.context.bytes, h200.context.bytes);
  EXPECT_EQ(h100.context.basis, FigureBasis::kAlike);
  EXPECT_EQ(FindGpu("141GiB")->context.basis, FigureBasis::kAlike);
}

TEST(Context, SaysHowItIsKnown) {
  EXPECT_EQ(FindGpu("4090")->context.basis, FigureBasis::kScaled);
  EXPECT_EQ(FindGpu("MI300X")->context.basis, FigureBasis::kAssumed);
  // Training loads code on top, of a size that few have read.
  const Gpu t4 = *FindGpu("T4");
  EXPECT_EQ(t4.context.bytes - t4.bare.bytes, 120 * kMiB);
  EXPECT_EQ(t4.context.high - t4.bare.high, 250 * kMiB);
  EXPECT_EQ(t4.context.low, t4.bare.low);
}

TEST(Context, OfASliceGoesByItsMultiprocessors) {
  const Gpu whole = *FindGpu("A100 40GB");
  const Gpu slice = *FindGpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb");
  EXPECT_EQ(slice.name, "A100 40GB 3g.20gb");
  EXPECT_EQ(slice.memory, 19968 * kMiB);
  EXPECT_EQ(slice.multiprocessors, 42);
  EXPECT_LT(slice.bare.bytes, whole.bare.bytes / 2);
  EXPECT_NEAR(slice.rates.fp16 / whole.rates.fp16, 42.0 / 108, 1e-9);
  EXPECT_EQ(slice.interconnect.nvlink, 0);
  EXPECT_EQ(FindGpu("a100-40gb-3g.20gb")->name, slice.name);
  EXPECT_EQ(FindGpu("H100 3g.40gb")->name, "H100 3g.40gb");
}

TEST(Nccl, TakesLessWithoutNvlink) {
  const Gpu linked = *FindGpu("A100");
  const Gpu pcie = *FindGpu("4090");
  EXPECT_EQ(NcclTakes(0, linked).bytes, 0);
  EXPECT_EQ(NcclTakes(1, linked).bytes, 558 * kMiB);
  EXPECT_EQ(NcclTakes(8, linked).bytes, 688 * kMiB);
  EXPECT_EQ(NcclTakes(8, linked).high, 1600 * kMiB);
  EXPECT_EQ(NcclTakes(8, pcie).bytes, 150 * kMiB);
  EXPECT_EQ(NcclTakes(8, pcie).low, 100 * kMiB);
  EXPECT_EQ(NcclTakes(8, pcie).high, 400 * kMiB);
}

/// 8 RTX 3080s with FSDP: huggingface/trl, issue 3436.
TEST(Nccl, AndTheContextAreWhatOneTextHasOverPcie) {
  const Gpu gpu = *FindGpu("3080");
  const ContextSize nccl = NcclTakes(8, gpu);
  EXPECT_LE(gpu.context.low + nccl.low, 369 * kMiB);
  EXPECT_GE(gpu.context.high + nccl.high, 369 * kMiB);
  EXPECT_NEAR(double(gpu.bare.bytes + nccl.bytes), 369.0 * double(kMiB), 0.2 * 369 * double(kMiB));
}

}  // namespace
}  // namespace plimsoll::context_test
