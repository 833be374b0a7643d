// The table. Sources, for every block:
//   bandwidth, rates, links   NVIDIA's data sheet of the card, or the appendix of the white paper
//                             of its architecture (GP100, GV100, TU102, GA100, GA102, AD102,
//                             GH100, Blackwell, RTX Blackwell). Sparse figures halved.
//                             Checked, by gpu_test.cc: each against cores times clock and against
//                             its relatives, which finds a slip. Not checked: no row has been
//                             compared with its sheet. Look one up before you rely on it.
//   multiprocessors, threads  the same; "Compute Capabilities" in the CUDA C++ Programming Guide
//   memory                    Exactly: deviceQuery or mem_get_info of that card in a public log.
//                             Reported: the same, printed in MiB, or in GiB with two decimals.
//                             About: no log found; the marketed size less what similar cards lose.
//                             Between: what other drivers reported of the same card.
//                             All on Linux: on Windows and in WSL the total is the marketed size.
//   AMD's rates               AMD's data sheets of the accelerators and its product pages of the
//                             Radeons; compute units from the table of GPUs in ROCm's documents
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hardware/context.h"
#include "hardware/gpu.h"
#include "hardware/slices.h"

namespace plimsoll {
namespace {

struct Memory {
  Bytes bytes = 0;
  bool measured = false;
  Bytes least = bytes;
  Bytes most = bytes;

  /// MiB, as texts print it, from the least to the most that any driver reported.
  constexpr Memory Between(Bytes low, Bytes high) const {
    return {bytes, measured, std::min(bytes, low * kMiB), std::max(bytes, high * kMiB)};
  }
};
constexpr Memory Exactly(Bytes bytes) { return {bytes, true}; }
constexpr Memory Reported(Bytes mib) { return {mib * kMiB, true}; }
constexpr Memory About(Bytes mib) { return {mib * kMiB, false}; }

/// TFLOP/s; 0 is "has not". bf16 is as fast as fp16 wherever there is any.
struct Rates {
  double fp32, tf32, fp16, fp8;
};
struct Pcie {
  int generation = 4;
  int lanes = 16;
};
/// Memory that is the host's too: MiB that the system was seen to hold of it when a job begins.
struct Shared {
  constexpr Shared() = default;
  constexpr Shared(Bytes least_mib, Bytes most_mib)
      : is(true), least(least_mib * kMiB), most(most_mib * kMiB) {}
  bool is = false;
  Bytes least = 0;
  Bytes most = 0;
};
/// `gfx` is AMD's. What PyTorch does on ROCm was not measured: there the rules for kernels are
/// those of a capability that has as much.
struct Chip {
  // NOLINTNEXTLINE(google-explicit-constructor): a row has {8, 6}
  constexpr Chip(int major, int minor, const char* name = "")
      : capability{major, minor}, gfx(name) {}
  ComputeCapability capability;
  const char* gfx;
};
constexpr Chip kCdna2{8, 0, "gfx90a"};
constexpr Chip kCdna3{8, 9, "gfx942"};
constexpr Chip kCdna4{8, 9, "gfx950"};
constexpr Chip kRdna3{8, 0, "gfx1100"};
constexpr Chip kRdna4{8, 9, "gfx1201"};

constexpr auto kGeForce = GpuKind::kConsumer;
constexpr auto kPro = GpuKind::kWorkstation;
constexpr auto kServer = GpuKind::kDataCentre;

struct Row {
  GpuKind kind;
  const char* name;
  Chip chip;
  int multiprocessors;
  Memory memory;
  double bandwidth;  // GB/s
  Rates rates;
  double nvlink;  // GB/s in one direction
  Pcie pcie;
  std::vector<std::string> aliases = {};
  double c2c = 0;  // GB/s in one direction
  Shared shared = {};
};

// A row is a line, and a second one for its aliases.
// clang-format off
const Row kRows[] = {
    // Pascal has no tensor cores. cuBLAS sums fp16 up in fp32, at the rate of fp32.
    {kGeForce, "GTX 1080 Ti", {6, 1}, 28, Exactly(11720130560), 484, {11.3, 0, 11.3, 0}, 0, {3}},

    // Turing: fp16 with fp32 accumulation at half rate, except on the Titan. Boost clocks of the
    // reference cards (the Founders Editions are 4 to 6 % faster). 2060: open-edge-platform/geti
    // issue 1035.
    {kGeForce, "RTX 2060", {7, 5}, 30, Exactly(6214189056), 336, {6.5, 0, 25.8, 0}, 0, {3}},
    {kGeForce, "RTX 2070", {7, 5}, 36, Exactly(8370061312), 448, {7.5, 0, 29.9, 0}, 0, {3}},
    {kGeForce, "RTX 2080", {7, 5}, 46, Exactly(8335327232), 448, {10.1, 0, 40.3, 0}, 25, {3}},
    {kGeForce, "RTX 2080 Ti", {7, 5}, 68, Reported(11019).Between(10988, 11019), 616,
     {13.4, 0, 53.8, 0}, 50, {3}},
    {kGeForce, "Titan RTX", {7, 5}, 72, About(24220), 672, {16.3, 0, 130.5, 0}, 50, {3}},

    // Ampere, GeForce: half rate with fp32 accumulation. 3070: meta-llama/codellama issue 82.
    {kGeForce, "RTX 3060", {8, 6}, 28, Reported(12044), 360, {12.7, 12.7, 25.5, 0}, 0, {},
     {"RTX 3060 12GB"}},
    {kGeForce, "RTX 3060 Ti", {8, 6}, 38, About(7967), 448, {16.2, 16.2, 32.4, 0}, 0, {}},
    {kGeForce, "RTX 3070", {8, 6}, 46, Reported(7967).Between(7946, 7967), 448,
{20.3, 20.3, 40.6, 0}, 0, {}},
    {kGeForce, "RTX 3070 Ti", {8, 6}, 48, About(7967), 608, {21.7, 21.7, 43.5, 0}, 0, {}},
    {kGeForce, "RTX 3080 10GB", {8, 6}, 68, Exactly(10472390656).Between(9912, 10015), 760,
     {29.8, 29.8, 59.5, 0}, 0, {}, {"RTX 3080"}},
    {kGeForce, "RTX 3080 12GB", {8, 6}, 70, About(12040), 912, {30.6, 30.6, 61.3, 0}, 0, {}},
    {kGeForce, "RTX 3080 Ti", {8, 6}, 80, About(12040), 912, {34.1, 34.1, 68.2, 0}, 0, {}},
    {kGeForce, "RTX 3090", {8, 6}, 82, Reported(24123).Between(24115, 24269), 936,
     {35.6, 35.6, 71.2, 0}, 56.25, {}},
    {kGeForce, "RTX 3090 Ti", {8, 6}, 84, Reported(24142), 1008, {40, 40, 80, 0}, 56.25, {}},

    // Ada, GeForce: half rate with fp32 accumulation, fp8 too. 4070 Ti: OpenLMLab/LOMO issue 17. The
    // laptop's 4060: ESRSchao/EdgeRegNet issue 2; the desktop's are taken to be like it. 4080
    // SUPER: shanice-l/UNOPose issue 4.
    {kGeForce, "RTX 4060 Laptop", {8, 9}, 24, Reported(7936), 256, {14.6, 14.6, 29.1, 58.2}, 0,
     {4, 8}, {"RTX 4060 Laptop GPU"}},
    {kGeForce, "RTX 4060", {8, 9}, 24, About(7936), 272, {15.1, 15.1, 30.2, 60.5}, 0, {4, 8}},
    {kGeForce, "RTX 4060 Ti 8GB", {8, 9}, 34, About(7936), 288, {22.1, 22.1, 44.1, 88.2}, 0, {4, 8},
     {"RTX 4060 Ti"}},
    {kGeForce, "RTX 4060 Ti 16GB", {8, 9}, 34, Exactly(16722821120), 288,
     {22.1, 22.1, 44.1, 88.2}, 0, {4, 8}},
    {kGeForce, "RTX 4070", {8, 9}, 46, About(12010), 504, {29.1, 29.1, 58.3, 116.6}, 0, {}},
    {kGeForce, "RTX 4070 SUPER", {8, 9}, 56, About(12010), 504, {35.5, 35.5, 71, 141.9}, 0, {}},
    {kGeForce, "RTX 4070 Ti", {8, 9}, 60, Reported(12011).Between(11981, 12011), 504,
     {40.1, 40.1, 80.2, 160.4}, 0, {}},
    {kGeForce, "RTX 4070 Ti SUPER", {8, 9}, 66, Reported(15934), 672,
     {44.1, 44.1, 88.2, 176.4}, 0, {}},
    {kGeForce, "RTX 4080", {8, 9}, 76, Reported(16049), 716.8, {48.7, 48.7, 97.5, 194.9}, 0, {}},
    {kGeForce, "RTX 4080 SUPER", {8, 9}, 80, Reported(15974), 736,
     {52.2, 52.2, 104.4, 208.9}, 0, {}},
    {kGeForce, "RTX 4090", {8, 9}, 128, Reported(24210).Between(24084, 24248), 1008,
     {82.6, 82.6, 165.2, 330.3}, 0, {}},

    // Blackwell, GeForce: likewise. 5070: what nvidia-smi says less what it calls reserved.
    {kGeForce, "RTX 5060", {12, 0}, 30, About(7800), 448, {19.2, 19.2, 38.4, 76.8}, 0, {5, 8}},
    {kGeForce, "RTX 5060 Ti 16GB", {12, 0}, 36, Reported(15841).Between(15816, 15841), 448,
     {23.7, 23.7, 47.4, 94.8}, 0, {5, 8}, {"RTX 5060 Ti"}},
    {kGeForce, "RTX 5070", {12, 0}, 48, About(11763), 672, {30.9, 30.9, 61.7, 123.5}, 0, {5}},
    {kGeForce, "RTX 5070 Ti", {12, 0}, 70, Reported(15842), 896, {43.9, 43.9, 87.9, 175.8}, 0, {5}},
    {kGeForce, "RTX 5080", {12, 0}, 84, Reported(15880), 960, {56.3, 56.3, 112.6, 225.1}, 0, {5}},
    {kGeForce, "RTX 5090", {12, 0}, 170, Exactly(33677180928), 1792,
     {104.8, 104.8, 209.5, 419}, 0, {5}},

    // Workstation cards sum in fp32 at full rate. Quadro RTX 8000: Victarry/stable-dreambooth issue
    // 8; RTX 4000: CompVis/stable-diffusion issue 485. A4000: DengKaiCQ/VGGT-Long issue 6. 6000 Ada:
    // unslothai/unsloth-zoo issue 1053, with ECC DINGYANB/MTVCrafter issue 21. 5000 Ada: 31.47 and
    // 31.51 GiB of a card that its texts do not name (murong-xu/CADS issue 4, siliconflow/onediff
    // issue 1041). The RTX PRO is the 600 W Workstation Edition.
    {kPro, "Quadro RTX 4000", {7, 5}, 36, Reported(7987), 416, {7.1, 0, 57, 0}, 0, {3}},
    {kPro, "Quadro RTX 8000", {7, 5}, 72, Reported(48599), 672, {16.3, 0, 130.5, 0}, 50, {3}},
    {kPro, "RTX A4000", {8, 6}, 48, Reported(15984), 448, {19.2, 38.3, 76.7, 0}, 0, {}},
    {kPro, "RTX A5000", {8, 6}, 64, Reported(24138), 768, {27.8, 55.6, 111.1, 0}, 56.25, {}},
    {kPro, "RTX A6000", {8, 6}, 84, Reported(48676), 768, {38.7, 77.4, 154.8, 0}, 56.25, {}},
    {kPro, "RTX 4000 Ada", {8, 9}, 48, About(19900), 360, {26.7, 53.4, 106.9, 213.8}, 0, {},
     {"RTX 4000 Ada Generation"}},
    {kPro, "RTX 4500 Ada", {8, 9}, 60, About(24100), 432, {39.6, 79.3, 158.5, 317}, 0, {},
     {"RTX 4500 Ada Generation"}},
    {kPro, "RTX 5000 Ada", {8, 9}, 100, About(32246), 576, {65.3, 130.6, 261.1, 522.2}, 0, {},
     {"RTX 5000 Ada Generation"}},
    {kPro, "RTX 6000 Ada", {8, 9}, 142, Exactly(50865307648), 960, {91.1, 182.1, 364.2, 728.5}, 0,
     {}, {"RTX 6000 Ada Generation", "Ada 6000"}},
    {kPro, "RTX 6000 Ada ECC", {8, 9}, 142, Reported(45496), 960, {91.1, 182.1, 364.2, 728.5}, 0,
     {}, {"Ada 6000 ECC", "RTX 6000 Ada Generation ECC"}},
    {kPro, "RTX PRO 6000 Blackwell", {12, 0}, 188, Reported(97250), 1792,
     {125, 251.9, 503.8, 1007.6}, 0, {5}, {"RTX PRO 6000", "PRO 6000", "RTX 6000 PRO",
      "RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Server Edition"}},

    // Pascal and Volta. The P100 does twice this in fp16 if the sums are fp16 too.
    {kServer, "P100 16GB", {6, 0}, 56, Reported(16280), 732, {9.3, 0, 9.3, 0}, 0, {3},
     {"P100", "P100-PCIE-16GB"}},
    {kServer, "V100 16GB PCIe", {7, 0}, 80, Reported(16160).Between(16128, 16160), 900,
     {14, 0, 112, 0}, 0, {3}, {"V100-PCIE-16GB"}},
    {kServer, "V100 16GB SXM", {7, 0}, 80, Reported(16160).Between(16128, 16160), 900,
     {15.7, 0, 125, 0}, 150, {3}, {"V100", "V100 16GB", "V100-SXM2-16GB"}},
    {kServer, "V100 32GB PCIe", {7, 0}, 80, About(32494), 900, {14, 0, 112, 0}, 0, {3},
     {"V100-PCIE-32GB"}},
    {kServer, "V100 32GB SXM", {7, 0}, 80, Exactly(34072559616), 900, {15.7, 0, 125, 0}, 150, {3},
     {"V100 32GB", "V100-SXM2-32GB"}},

    // Turing.
    {kServer, "T4", {7, 5}, 40, Reported(15095).Between(14909, 15114), 320, {8.1, 0, 65, 0}, 0,
     {3}},

    // Ampere. The A10G is Amazon's, at half rate. A30: google/RB-Modulation issue 5. A100
    // 64GB: Leonardo's, with more multiprocessors (minerva4ai-eu/minerva-benchmarks issue 42).
    {kServer, "A2", {8, 6}, 10, About(15100), 200, {4.5, 9, 18, 0}, 0, {4, 8}},
    {kServer, "A10", {8, 6}, 72, Exactly(23696375808), 600, {31.2, 62.5, 125, 0}, 0, {}},
    {kServer, "A10G", {8, 6}, 80, Reported(22587).Between(22579, 22723), 600, {35, 35, 70, 0}, 0, {}},
    {kServer, "A30", {8, 0}, 56, Reported(24094), 933, {10.3, 82, 165, 0}, 100, {}},
    {kServer, "A40", {8, 6}, 84, Reported(45416), 696, {37.4, 74.8, 149.7, 0}, 56.25, {}},
    {kServer, "A100 40GB PCIe", {8, 0}, 108, About(40339), 1555, {19.5, 156, 312, 0}, 300, {},
     {"A100-PCIE-40GB"}},
    {kServer, "A100 40GB SXM", {8, 0}, 108, Exactly(42298834944).Between(40339, 40540), 1555,
     {19.5, 156, 312, 0}, 300, {}, {"A100 40GB", "A100-SXM4-40GB"}},
    {kServer, "A100 64GB", {8, 0}, 124, Reported(64809), 1638, {22.4, 179, 358, 0}, 300, {},
     {"A100-SXM-64GB"}},
    {kServer, "A100 80GB PCIe", {8, 0}, 108, About(81050), 1935, {19.5, 156, 312, 0}, 300, {}},
    {kServer, "A100 80GB SXM", {8, 0}, 108, Exactly(84987740160).Between(81050, 81254), 2039,
     {19.5, 156, 312, 0}, 300, {}, {"A100", "A100 80GB", "A100-SXM4-80GB"}},

    // Ada. L20 and L40 are at half rate, L4 and L40S are not. L40: QwenLM/Qwen3-VL issue 2097.
    {kServer, "L4", {8, 9}, 58, Exactly(23612293120).Between(22518, 22559), 300,
     {30.3, 60.5, 121, 242.5}, 0, {}},
    {kServer, "L20", {8, 9}, 92, About(45500), 864, {59.8, 59.8, 119.5, 239}, 0, {}},
    {kServer, "L40", {8, 9}, 142, Reported(45465), 864, {90.5, 90.5, 181.1, 362.1}, 0, {}},
    {kServer, "L40S", {8, 9}, 142, Reported(45589).Between(45486, 45589), 864,
     {91.6, 183, 362.1, 733}, 0, {}},

    // Hopper. The H200 is the one we measure on (150,109,880,320 bytes in every record). H100 NVL:
    // ali-vilab/VACE issue 56. H100 96GB: pytorch/torchtitan issue 1287, with HBM2e. H800 and H20 are
    // made for China. The GH200 is the one with 96 GB of HBM3.
    {kServer, "H100 PCIe", {9, 0}, 114, Reported(81008), 2039, {51.2, 378, 756, 1513}, 300, {5}},
    {kServer, "H100 SXM", {9, 0}, 132, Reported(81090).Between(81009, 81121), 3352,
     {66.9, 494.7, 989.4, 1978.9}, 450, {5}, {"H100", "H100 80GB", "H100 80GB HBM3", "H100 SXM5"}},
    {kServer, "H100 NVL", {9, 0}, 132, Reported(95232), 3938, {60, 417.5, 835.5, 1670.5}, 300, {5},
     {"H100 94GB"}},
    {kServer, "H100 96GB", {9, 0}, 132, Reported(97275), 2400, {66.9, 494.7, 989.4, 1978.9}, 450,
     {5}, {"H100 SXM 96GB"}},
    {kServer, "H800", {9, 0}, 132, About(81090), 3352, {66.9, 494.7, 989.4, 1978.9}, 200, {5},
     {"H800 SXM"}},
    {kServer, "H20", {9, 0}, 78, About(97275), 4000, {44, 74, 148, 296}, 450, {5}, {"H20 96GB"}},
    {kServer, "H200", {9, 0}, 132, Exactly(150109880320), 4800, {66.9, 494.7, 989.4, 1978.9}, 450,
     {5}, {"H200 SXM", "H200 141GB"}},
    {kServer, "GH200", {9, 0}, 132, Exactly(102005473280), 4000,
     {66.9, 494.7, 989.4, 1978.9}, 450, {5}, {"GH200 480GB", "GH200 96GB"}, 450},

    // Blackwell. B300: nvidia-smi says 275040 MiB; GB200: public logs say about 185 GiB. Both less
    // 0.4 %, assumed to be what CUDA sees less than nvidia-smi.
    {kServer, "B200", {10, 0}, 148, Reported(182631), 8000, {75, 1125, 2250, 4500}, 900, {5},
     {"B200 SXM"}},
    {kServer, "GB200", {10, 0}, 152, About(188700), 8000, {80, 1250, 2500, 5000}, 900, {5},
     {}, 450},
    {kServer, "B300", {10, 3}, 148, About(274000), 8000, {75, 1125, 2250, 4500}, 900, {6},
     {"B300 SXM6", "B300 SXM6 AC"}},

    // Memory that is the host's too. GB10: MiaAI-Lab issue 47 has 121.69 GiB in all and 101.3 to
    // 102.2 GiB free after a fresh boot; rates from the petaflop of sparse fp4 that is advertised.
    // Orin: what tegrastats says, and nobody says what its system leaves.
    {kPro, "GB10", {12, 1}, 48, Reported(124611), 273, {31, 62.5, 125, 250}, 0, {5},
     {"DGX Spark"}, 300, Shared(19958, 20880)},
    {kPro, "Jetson AGX Orin 64GB", {8, 7}, 16, About(62841), 204.8, {5.3, 21.3, 42.6, 0}, 0, {},
     {"Orin", "AGX Orin"}, 204.8, Shared(0, 0)},

    // AMD, as ROCm's torch has them: a card less 20 MiB to 0.1 GiB. MI355X: pytorch/pytorch issue
    // 175431; MI325X: ROCm/TheRock issue 2118, both by their size. 7900 XT: WSL, and 9070 XT:
    // Windows (huggingface/autotrain-advanced issue 737, Comfy-Org/ComfyUI issue 13112). An MI250X
    // is two GPUs, and this is one of them. The link is Infinity Fabric.
    {kGeForce, "RX 7900 XT", kRdna3, 84, About(20419), 800, {51.5, 0, 103, 0}, 0, {}},
    {kGeForce, "RX 7900 XTX", kRdna3, 96, About(24556), 960, {61.4, 0, 122.8, 0}, 0, {}},
    {kGeForce, "RX 9070 XT", kRdna4, 64, About(16302), 640, {48.7, 0, 194.6, 389.3}, 0, {5}},
    {kServer, "MI210", kCdna2, 104, About(65516), 1638, {22.6, 0, 181, 0}, 150, {}},
    {kServer, "MI250X", kCdna2, 110, About(65516), 1638, {23.9, 0, 191.5, 0}, 200, {},
     {"MI250X GCD"}},
    {kServer, "MI300X", kCdna3, 304, About(196588), 5300, {163.4, 653.7, 1307.4, 2614.9}, 448, {5}},
    {kServer, "MI325X", kCdna3, 304, Reported(262124), 6000, {163.4, 653.7, 1307.4, 2614.9}, 448,
     {5}},
    {kServer, "MI355X", kCdna4, 256, Reported(294892), 8000, {157.3, 0, 2516.6, 5033.2}, 537.6,
     {5}},
};
// clang-format on

/// The CUDA C++ Programming Guide, "Maximum number of resident threads per SM".
int ThreadsPerMultiprocessor(const Chip& chip) {
  const ComputeCapability& c = chip.capability;
  if (chip.gfx[0] != 0) return 2048;
  if (c == ComputeCapability{7, 5}) return 1024;
  if ((c.major == 8 && c.minor > 0) || c.major == 12) return 1536;
  return 2048;
}

/// Bytes/s in one direction, after the line code: generation 3 is 8 GT/s with 128b/130b, and each
/// next one doubles it; generation 6 loses another 4 % to its packets.
double PcieBandwidth(Pcie pcie) {
  constexpr std::array<double, 7> kPerLane = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  return kPerLane.at(static_cast<std::size_t>(pcie.generation)) * pcie.lanes;
}

/// parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp. Blackwell joined Hopper
/// with pytorch pull request 175344 (19 February 2026, after the branch of 2.11 was cut).
Bytes CublasWorkspace(int major, bool knows_blackwell) {
  const bool large = major == 9 || (knows_blackwell && (major == 10 || major == 12));
  return large ? 32 * kMiB : 2 * 4096 * kKiB + 8 * 16 * kKiB;
}

std::optional<double> OrNothing(double tflops) {
  return tflops > 0 ? std::optional(tflops * 1e12) : std::nullopt;
}

/// HIP's notes in PyTorch's documents: 32 MiB, 128 MiB from the MI300 on.
Bytes HipblasWorkspace(std::string_view gfx) {
  return gfx.starts_with("gfx94") || gfx.starts_with("gfx95") ? 128 * kMiB : 32 * kMiB;
}

void SetMemory(const Row& row, Gpu& gpu) {
  const Memory& memory = row.memory;
  gpu.memory = memory.bytes;
  gpu.memory_is_measured = memory.measured;
  gpu.less_elsewhere = memory.bytes - memory.least;
  gpu.more_elsewhere = memory.most - memory.bytes;
  gpu.unified = row.shared.is;
  if (!gpu.unified) return;
  const Bytes middle = (row.shared.least + row.shared.most) / 2;
  gpu.memory -= middle;
  gpu.system = middle;
  gpu.less_elsewhere += row.shared.most - middle;
  gpu.more_elsewhere += middle - row.shared.least;
}

Gpu FromRow(const Row& row) {
  const ComputeCapability capability = row.chip.capability;
  Gpu gpu{.name = row.name,
          .aliases = row.aliases,
          .kind = row.kind,
          .vendor = row.chip.gfx[0] == 0 ? GpuVendor::kNvidia : GpuVendor::kAmd,
          .capability = capability,
          .gfx = row.chip.gfx,
          .multiprocessors = row.multiprocessors,
          .threads_per_multiprocessor = ThreadsPerMultiprocessor(row.chip),
          .bandwidth = row.bandwidth * 1e9};
  SetMemory(row, gpu);
  gpu.rates = {.fp32 = row.rates.fp32 * 1e12,
               .tf32 = OrNothing(row.rates.tf32),
               .fp16 = row.rates.fp16 * 1e12,
               .bf16 = capability.major >= 8 ? OrNothing(row.rates.fp16) : std::nullopt,
               .fp8 = OrNothing(row.rates.fp8)};
  gpu.interconnect = {.nvlink = row.nvlink * 1e9,
                      .pcie_generation = row.pcie.generation,
                      .pcie_lanes = row.pcie.lanes,
                      .host = row.c2c > 0 ? row.c2c * 1e9 : PcieBandwidth(row.pcie),
                      .host_is_c2c = row.c2c > 0};
  const bool amd = gpu.vendor == GpuVendor::kAmd;
  gpu.cublas_workspace = amd ? HipblasWorkspace(gpu.gfx) : CublasWorkspace(capability.major, true);
  gpu.cublas_workspace_before_2_12 =
      amd ? gpu.cublas_workspace : CublasWorkspace(capability.major, false);
  SetContext(gpu);
  return gpu;
}

}  // namespace

const std::vector<Gpu>& Gpus() {
  static const std::vector<Gpu> kGpus = [] {
    std::vector<Gpu> gpus;
    for (const Row& row : kRows) gpus.push_back(FromRow(row));
    AddSlices(gpus);
    return gpus;
  }();
  return kGpus;
}

}  // namespace plimsoll
