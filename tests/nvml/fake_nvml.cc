// Stands in for NVIDIA's management library in tests. What it tells is in the file $FAKE_NVML, read
// anew whenever the GPUs are counted:
//   gpu TOTAL RESERVED USED BUSY UUID NAME…    BUSY "-": not told; NAME "lost": it fell off the bus
//   process PID USED                           on the GPU above; USED "-": not told
//   drawing PID USED                           likewise, a program that draws
// Without the file the driver is "not loaded". Built with FAKE_NVML_OLD it has the functions of
// 2013 only, where what the driver keeps for itself counts as used.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#define NVML_FUNCTION extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kTooSmall = 7;
constexpr int kNotLoaded = 9;
constexpr int kLost = 15;

using Number = unsigned long long;

struct Process {
  unsigned pid;
  Number used;
};

struct Gpu {
  Number total, reserved, used;
  std::string busy, uuid, name;
  std::vector<Process> computing, drawing;
};

std::vector<Gpu> gpus;

Number NumberOrNone(const std::string& text) {
  return text == "-" ? ~Number{0} : std::strtoull(text.c_str(), nullptr, 10);
}

void ReadLine(const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "gpu") {
    Gpu gpu;
    words >> gpu.total >> gpu.reserved >> gpu.used >> gpu.busy >> gpu.uuid >> std::ws;
    std::getline(words, gpu.name);
    gpus.push_back(gpu);
  } else if (!gpus.empty() && (kind == "process" || kind == "drawing")) {
    unsigned pid = 0;
    std::string used;
    words >> pid >> used;
    auto& list = kind == "process" ? gpus.back().computing : gpus.back().drawing;
    list.push_back({pid, NumberOrNone(used)});
  }
}

int ReadFile() {
  const char* const path = std::getenv("FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  if (!file) return kNotLoaded;
  gpus.clear();
  for (std::string line; std::getline(file, line);) ReadLine(line);
  return kSuccess;
}

int Copy(const std::string& text, char* to, unsigned room) {
  if (text.size() >= room) return kTooSmall;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

template <typename Info>
int List(const std::vector<Process>& processes, unsigned* count, Info* to) {
  const unsigned room = *count;
  *count = static_cast<unsigned>(processes.size());
  if (room < *count) return kTooSmall;
  for (unsigned i = 0; i < *count; ++i) {
    to[i] = {};
    to[i].pid = processes[i].pid;
    to[i].used = processes[i].used;
  }
  return kSuccess;
}

int Count(unsigned* count) {
  const int code = ReadFile();
  *count = static_cast<unsigned>(gpus.size());
  return code;
}

int Handle(unsigned index, Gpu** to) {
  if (index >= gpus.size()) return kInvalidArgument;
  *to = &gpus[index];
  return kSuccess;
}

struct MemoryV1 {
  Number total, free, used;
};
struct MemoryV2 {
  unsigned version;
  Number total, reserved, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
#ifdef FAKE_NVML_OLD
struct Info {
  unsigned pid;
  Number used;
};
#define NEWEST(name, version) name
#else
struct Info {
  unsigned pid;
  Number used;
  unsigned gpu_instance, compute_instance;
};
#define NEWEST(name, version) name##version
#endif

}  // namespace

NVML_FUNCTION int NEWEST(nvmlInit, _v2)() { return ReadFile(); }
NVML_FUNCTION int nvmlShutdown() { return kSuccess; }
NVML_FUNCTION const char* nvmlErrorString(int code) {
  return code == kNotLoaded ? "Driver Not Loaded" : code == kLost ? "GPU is lost" : "Another Error";
}
NVML_FUNCTION int NEWEST(nvmlDeviceGetCount, _v2)(unsigned* count) { return Count(count); }
NVML_FUNCTION int NEWEST(nvmlDeviceGetHandleByIndex, _v2)(unsigned index, Gpu** to) {
  return Handle(index, to);
}
NVML_FUNCTION int nvmlDeviceGetName(Gpu* gpu, char* to, unsigned room) {
  return Copy(gpu->name, to, room);
}
NVML_FUNCTION int nvmlDeviceGetUUID(Gpu* gpu, char* to, unsigned room) {
  return Copy(gpu->uuid, to, room);
}
NVML_FUNCTION int nvmlDeviceGetMemoryInfo(Gpu* gpu, MemoryV1* to) {
  if (gpu->name == "lost") return kLost;
  const Number used = gpu->used + gpu->reserved;
  *to = {gpu->total, gpu->total - used, used};
  return kSuccess;
}
NVML_FUNCTION int nvmlDeviceGetUtilizationRates(Gpu* gpu, Utilization* to) {
  if (gpu->busy == "-") return kNotSupported;
  *to = {static_cast<unsigned>(std::atoi(gpu->busy.c_str())), 0};
  return kSuccess;
}
NVML_FUNCTION int NEWEST(nvmlDeviceGetComputeRunningProcesses, _v3)(Gpu* gpu, unsigned* count,
                                                                    Info* to) {
  return List(gpu->computing, count, to);
}
NVML_FUNCTION int NEWEST(nvmlDeviceGetGraphicsRunningProcesses, _v3)(Gpu* gpu, unsigned* count,
                                                                     Info* to) {
  return List(gpu->drawing, count, to);
}
#ifndef FAKE_NVML_OLD
NVML_FUNCTION int nvmlDeviceGetMemoryInfo_v2(Gpu* gpu, MemoryV2* to) {
  if (to->version != (sizeof(MemoryV2) | 2U << 24U)) return kInvalidArgument;
  if (gpu->name == "lost") return kLost;
  *to = {to->version, gpu->total, gpu->reserved, gpu->total - gpu->used - gpu->reserved, gpu->used};
  return kSuccess;
}
#endif
