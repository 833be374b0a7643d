#include "driver/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

namespace plimsoll {
namespace {

// As NVIDIA documents them (NVML API Reference). A function that changed has a suffix, and a driver
// keeps its former ones: the newest that is there is taken.

using Device = void*;
using Code = int;
constexpr Code kSuccess = 0;
constexpr Code kTooSmall = 7;
constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();
constexpr unsigned kMostGpus = 1024;
constexpr unsigned kMostProcesses = 65536;

struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryV2 = sizeof(MemoryV2) | 2U << 24U;
struct Utilization {
  unsigned gpu, memory;
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};
struct ProcessV2 {  // of the functions _v2 and _v3
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

template <typename Process>
using ListProcesses = Code (*)(Device, unsigned*, Process*);

Bytes ToBytes(unsigned long long n) {
  return static_cast<Bytes>(
      std::min(n, static_cast<unsigned long long>(std::numeric_limits<Bytes>::max())));
}

}  // namespace

struct Nvml::Library {
  void* file = nullptr;
  bool begun = false;

  Code (*init)() = nullptr;
  Code (*shutdown)() = nullptr;
  const char* (*error_text)(Code) = nullptr;
  Code (*count)(unsigned*) = nullptr;
  Code (*handle)(unsigned, Device*) = nullptr;
  Code (*name)(Device, char*, unsigned) = nullptr;
  Code (*uuid)(Device, char*, unsigned) = nullptr;
  Code (*memory_v2)(Device, MemoryV2*) = nullptr;
  Code (*memory_v1)(Device, MemoryV1*) = nullptr;
  Code (*utilization)(Device, Utilization*) = nullptr;
  /// Programs that compute, and those that draw; a process can be both.
  std::array<ListProcesses<ProcessV2>, 2> processes_v2 = {};
  std::array<ListProcesses<ProcessV1>, 2> processes_v1 = {};

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    // Not unloaded: the process ends soon, and what the library keeps for itself would look lost.
    if (begun) shutdown();
  }

  template <typename Function>
  void Find(Function& function, std::initializer_list<const char*> names) {
    for (const char* symbol : names) {
      function = reinterpret_cast<Function>(::dlsym(file, symbol));
      if (function != nullptr) return;
    }
  }

  bool FindAll();
  std::string Describe(Code code) const;
  std::optional<DriverMemory> Memory(Device device, Code& code) const;
  void AddProcesses(Device device, DriverGpu& gpu) const;
  DriverGpu Read(unsigned index) const;
};

bool Nvml::Library::FindAll() {
  Find(init, {"nvmlInit_v2", "nvmlInit"});
  Find(shutdown, {"nvmlShutdown"});
  Find(error_text, {"nvmlErrorString"});
  Find(count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
  Find(handle, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
  Find(name, {"nvmlDeviceGetName"});
  Find(uuid, {"nvmlDeviceGetUUID"});
  Find(memory_v2, {"nvmlDeviceGetMemoryInfo_v2"});
  Find(memory_v1, {"nvmlDeviceGetMemoryInfo"});
  Find(utilization, {"nvmlDeviceGetUtilizationRates"});
  Find(processes_v2[0],
       {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  Find(processes_v2[1],
       {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"});
  Find(processes_v1[0], {"nvmlDeviceGetComputeRunningProcesses"});
  Find(processes_v1[1], {"nvmlDeviceGetGraphicsRunningProcesses"});
  return init != nullptr && shutdown != nullptr && count != nullptr && handle != nullptr &&
         (memory_v1 != nullptr || memory_v2 != nullptr);
}

std::string Nvml::Library::Describe(Code code) const {
  const char* const text = error_text == nullptr ? nullptr : error_text(code);
  return text == nullptr ? fmt::format("NVML error {}", code) : std::string(text);
}

std::optional<DriverMemory> Nvml::Library::Memory(Device device, Code& code) const {
  MemoryV2 two{.version = kMemoryV2};
  code = memory_v2 == nullptr ? kSuccess : memory_v2(device, &two);
  if (memory_v2 != nullptr && code == kSuccess) {
    return DriverMemory{.total = ToBytes(two.total),
                        .used = ToBytes(two.used),
                        .free = ToBytes(two.free),
                        .driver = ToBytes(two.reserved)};
  }
  MemoryV1 one{};
  if (memory_v1 == nullptr || (code = memory_v1(device, &one)) != kSuccess) return std::nullopt;
  return DriverMemory{
      .total = ToBytes(one.total), .used = ToBytes(one.used), .free = ToBytes(one.free)};
}

namespace {

/// Grows the list until all of them have room; processes begin while one asks.
template <typename Process>
void AddFrom(ListProcesses<Process> list, Device device, std::vector<DriverProcess>& to) {
  if (list == nullptr) return;
  std::vector<Process> found(64);
  unsigned count = static_cast<unsigned>(found.size());
  Code code = list(device, &count, found.data());
  while (code == kTooSmall && found.size() < kMostProcesses) {
    found.resize(
        std::min<std::size_t>(std::max<std::size_t>(found.size() * 2, count + 8), kMostProcesses));
    count = static_cast<unsigned>(found.size());
    code = list(device, &count, found.data());
  }
  if (code != kSuccess) return;
  found.resize(std::min<std::size_t>(count, found.size()));
  for (const Process& process : found) {
    const auto same = [&](const DriverProcess& other) { return other.pid == process.pid; };
    if (std::ranges::any_of(to, same)) continue;  // it computes and draws
    to.push_back({.pid = process.pid});
    if (process.used != kNotAvailable) to.back().used = ToBytes(process.used);
  }
}

}  // namespace

void Nvml::Library::AddProcesses(Device device, DriverGpu& gpu) const {
  for (std::size_t kind = 0; kind < processes_v2.size(); ++kind) {
    if (processes_v2[kind] != nullptr) {
      AddFrom(processes_v2[kind], device, gpu.processes);
    } else {
      AddFrom(processes_v1[kind], device, gpu.processes);
    }
  }
  std::ranges::sort(gpu.processes, {}, &DriverProcess::pid);
}

DriverGpu Nvml::Library::Read(unsigned index) const {
  DriverGpu gpu{.index = static_cast<int>(index)};
  Device device = nullptr;
  Code code = handle(index, &device);
  if (code != kSuccess) {
    gpu.failure = Describe(code);
    return gpu;
  }
  std::array<char, 128> text{};
  const unsigned room = text.size() - 1;
  if (name != nullptr && name(device, text.data(), room) == kSuccess) gpu.name = text.data();
  text.fill('\0');
  if (uuid != nullptr && uuid(device, text.data(), room) == kSuccess) gpu.uuid = text.data();
  gpu.memory = Memory(device, code);
  if (!gpu.memory) gpu.failure = Describe(code);
  Utilization busy{};
  if (utilization != nullptr && utilization(device, &busy) == kSuccess) {
    gpu.busy = static_cast<int>(std::min(busy.gpu, 100U));
  }
  AddProcesses(device, gpu);
  return gpu;
}

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;
Nvml::Nvml(Nvml&&) noexcept = default;
Nvml& Nvml::operator=(Nvml&&) noexcept = default;

Result<Nvml> Nvml::Load() {
  auto library = std::make_unique<Library>();
  std::vector<std::string> names = {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"};
  if (const char* own = std::getenv("PLIMSOLL_NVML"); own != nullptr && *own != '\0') names = {own};
  for (const std::string& file : names) {
    if (library->file == nullptr) library->file = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library->file == nullptr) {
    return Error{
        .message = fmt::format("no NVIDIA driver here: {} cannot be loaded", names.front()),
        .hint =
            "run it where nvidia-smi works; a container needs --gpus all and the driver "
            "capability \"utility\""};
  }
  if (!library->FindAll()) {
    return Error{.message = fmt::format("{} lacks functions that are needed", names.front()),
                 .hint = "a driver of 2014 or newer has them"};
  }
  if (const Code code = library->init(); code != kSuccess) {
    return Error{
        .message = fmt::format("the NVIDIA driver does not answer: {}", library->Describe(code)),
        .hint = "nvidia-smi should say the same"};
  }
  library->begun = true;
  unsigned gpus = 0;
  if (const Code code = library->count(&gpus); code != kSuccess || gpus == 0) {
    return Error{.message = code == kSuccess ? "the NVIDIA driver sees no GPU here"
                                             : fmt::format("the NVIDIA driver cannot count its "
                                                           "GPUs: {}",
                                                           library->Describe(code)),
                 .hint = "a container needs --gpus all"};
  }
  return Nvml(std::move(library));
}

std::vector<DriverGpu> Nvml::Read() const {
  unsigned count = 0;
  if (library_->count(&count) != kSuccess) count = 0;
  std::vector<DriverGpu> gpus;
  for (unsigned i = 0; i < std::min(count, kMostGpus); ++i) gpus.push_back(library_->Read(i));
  return gpus;
}

}  // namespace plimsoll
