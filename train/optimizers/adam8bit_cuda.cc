#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <climits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/optimizers/adam8bit_cuda_source.h"
#include "train/optimizers/adam8bit_kernels.h"

namespace plimsoll::train::adam8bit {
namespace {

constexpr unsigned kThreads = 256;

/// As the struct of the same name in kCudaSource.
struct Arguments {
  void* parameter;
  const void* gradient;
  void* average;
  float* average_scale;
  void* square;
  float* square_scale;
  long long elements;
  double over_elements;
  double average_dither, square_dither;
  Constants constants;
};
static_assert(sizeof(Constants) == 9 * sizeof(float));
static_assert(sizeof(Arguments) == 10 * 8 + sizeof(Constants) + 4);

/// LibTorch's own door to the compiler and the driver: a library beside it that links both, and
/// that it opens itself for the kernels that it compiles. What LibTorch finds there has another
/// layout in each release, and its headers are not installed; the functions below it stay.
void* OpenLibrary() {
  std::string folder;
  if (void* const torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
    char origin[PATH_MAX];
    if (dlinfo(torch, RTLD_DI_ORIGIN, origin) == 0) folder = std::string(origin) + "/";
    dlclose(torch);
  }
  void* const library = dlopen((folder + "libcaffe2_nvrtc.so").c_str(), RTLD_NOW);
  TORCH_CHECK(library != nullptr, dlerror());
  return library;
}

class Library {
  /// Before what is found in it.
  void* handle_ = OpenLibrary();

 public:
  static const Library& Get() {
    static const Library library;
    return library;
  }

  decltype(&nvrtcCreateProgram) create_program = Find("nvrtcCreateProgram");
  decltype(&nvrtcCompileProgram) compile_program = Find("nvrtcCompileProgram");
  decltype(&nvrtcGetProgramLogSize) log_size = Find("nvrtcGetProgramLogSize");
  decltype(&nvrtcGetProgramLog) log = Find("nvrtcGetProgramLog");
  decltype(&nvrtcGetCUBINSize) binary_size = Find("nvrtcGetCUBINSize");
  decltype(&nvrtcGetCUBIN) binary = Find("nvrtcGetCUBIN");
  decltype(&nvrtcDestroyProgram) destroy_program = Find("nvrtcDestroyProgram");
  decltype(&cuCtxGetCurrent) current_context = Find("cuCtxGetCurrent");
  decltype(&cuModuleLoadData) load_module = Find("cuModuleLoadData");
  decltype(&cuModuleGetFunction) get_function = Find("cuModuleGetFunction");
  decltype(&cuLaunchKernel) launch = Find("cuLaunchKernel");

 private:
  /// Of any type: what it is assigned to says which.
  struct Symbol {
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
    void* address;
  };

  Symbol Find(const char* name) const {
    void* const address = dlsym(handle_, name);
    TORCH_CHECK(address != nullptr, dlerror());
    return {address};
  }
};

const char* NumberName(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float";
    case at::kDouble:
      return "double";
    case at::kHalf:
      return "Half";
    case at::kBFloat16:
      return "Bfloat16";
    default:
      TORCH_CHECK(false, "no kernel for ", type);
  }
}

/// Of the current device: 90 for 9.0.
int Capability() {
  int device = 0, major = 0, minor = 0;
  TORCH_CHECK(
      cudaGetDevice(&device) == cudaSuccess &&
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
              cudaSuccess &&
          cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess,
      "no CUDA device");
  return 10 * major + minor;
}

/// Machine code for the current device.
std::vector<char> Compile(const Library& library, at::ScalarType type) {
  const std::string architecture = c10::str("--gpu-architecture=sm_", Capability());
  const std::string number = c10::str("-DNumber=", NumberName(type));
  const char* const options[] = {"--std=c++17", architecture.c_str(), number.c_str()};
  nvrtcProgram program;
  TORCH_CHECK(library.create_program(&program, kCudaSource, "adam8bit.cu", 0, nullptr, nullptr) ==
              NVRTC_SUCCESS);
  std::vector<char> binary;
  std::string log;
  std::size_t size = 0;
  if (library.compile_program(program, 3, options) == NVRTC_SUCCESS &&
      library.binary_size(program, &size) == NVRTC_SUCCESS) {
    binary.resize(size);
    library.binary(program, binary.data());
  } else if (library.log_size(program, &size) == NVRTC_SUCCESS) {
    log.resize(size);
    library.log(program, log.data());
  }
  library.destroy_program(&program);
  TORCH_CHECK(!binary.empty(), "NVRTC for ", architecture, ": ", log);
  return binary;
}

void Check(CUresult result, const char* what) {
  TORCH_CHECK(result == CUDA_SUCCESS, what, ": CUDA driver error ", static_cast<int>(result));
}

/// The driver's functions work in the thread's context, which the runtime makes when it is first
/// needed: in a thread that has launched nothing yet, here.
void NeedContext(const Library& library) {
  CUcontext context = nullptr;
  if (library.current_context(&context) == CUDA_SUCCESS && context != nullptr) return;
  TORCH_CHECK(cudaFree(nullptr) == cudaSuccess, "no CUDA context");
}

struct Kernels {
  CUfunction in_codes = nullptr;
  CUfunction exactly = nullptr;
};

Kernels Load(at::ScalarType type) {
  const Library& library = Library::Get();
  const std::vector<char> binary = Compile(library, type);
  NeedContext(library);
  CUmodule module = nullptr;
  Check(library.load_module(&module, binary.data()), "cuModuleLoadData");
  Kernels kernels;
  Check(library.get_function(&kernels.in_codes, module, "StepInCodes"), "cuModuleGetFunction");
  Check(library.get_function(&kernels.exactly, module, "StepExactly"), "cuModuleGetFunction");
  return kernels;
}

std::optional<Kernels> LoadOrWarn(at::ScalarType type) {
  try {
    return Load(type);
  } catch (const c10::Error& error) {
    TORCH_WARN_ONCE("8-bit Adam is many times slower, as its kernel could not be made: ",
                    error.what_without_backtrace());
    return std::nullopt;
  }
}

/// For the life of the program, as the device's context.
const std::optional<Kernels>& KernelsFor(const at::Tensor& parameter) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceIndex, at::ScalarType>, std::optional<Kernels>> known;
  const std::lock_guard lock(mutex);
  const std::pair key(parameter.device().index(), parameter.scalar_type());
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const c10::cuda::CUDAGuard guard(parameter.device());
  return known.emplace(key, LoadOrWarn(parameter.scalar_type())).first->second;
}

Arguments ArgumentsOf(const Step& step) {
  TORCH_CHECK(step.gradient.scalar_type() == step.parameter.scalar_type(), "a gradient of type ",
              step.gradient.scalar_type(), " for a parameter of type ",
              step.parameter.scalar_type());
  const auto scale = [](const at::Tensor& all) {
    return all.defined() ? all.data_ptr<float>() : nullptr;
  };
  const double over_steps = static_cast<double>(step.number) * kOverSteps;
  return {.parameter = step.parameter.data_ptr(),
          .gradient = step.gradient.data_ptr(),
          .average = step.average.data_ptr(),
          .average_scale = scale(step.average_scale),
          .square = step.square.data_ptr(),
          .square_scale = scale(step.square_scale),
          .elements = step.parameter.numel(),
          .over_elements = kOverElements,
          .average_dither = over_steps + kAverageOffset,
          .square_dither = over_steps,
          .constants = Constants(step)};
}

}  // namespace

bool HasCudaKernel(const at::Tensor& parameter) {
  return parameter.is_cuda() && KernelsFor(parameter).has_value();
}

void RunOnCuda(const Step& step) {
  const Kernels& kernels = KernelsFor(step.parameter).value();
  const Library& library = Library::Get();
  const c10::cuda::CUDAGuard guard(step.parameter.device());
  NeedContext(library);
  Arguments arguments = ArgumentsOf(step);
  // In codes, a warp of 32 threads takes a block.
  const std::int64_t threads =
      step.in_codes() ? BlocksOf(step.parameter.numel()) * 32 : step.parameter.numel();
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  void* pointers[] = {&arguments};
  Check(library.launch(step.in_codes() ? kernels.in_codes : kernels.exactly, blocks, 1, 1, kThreads,
                       1, 1, 0, c10::cuda::getCurrentCUDAStream(), pointers, nullptr),
        "8-bit Adam");
}

}  // namespace plimsoll::train::adam8bit
