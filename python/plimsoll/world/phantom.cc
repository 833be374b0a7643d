// A CUDA device that is not there.
//
// Where every tensor is fake no kernel runs, and still PyTorch asks for a device: the autograd
// engine for streams and events (through the device guard), autocast and the convolutions for what
// cuDNN can do (through the CUDA hooks). A build for the CPU alone has no guard ("PyTorch is not
// linked with support for cuda devices"); a CUDA build without a GPU has one that refuses
// ("hasPrimaryContext expects a valid device index"). While this library is installed it answers in
// their place: one device, nothing to do. `install` and `remove` come in pairs, so that a process
// with a real GPU has it back afterwards.
//
// Torch makes its hooks object once, when it is first asked for, which may be while it is being
// imported. The object itself therefore stays, and its table of virtual functions is exchanged:
// that works whenever torch was imported, and can be undone. It rests on two facts: our class adds
// no fields, and torch only ever calls the object through its base (`at::detail::getCUDAHooks`).
//
// Torch's interfaces grow from release to release (2.4 to 2.15 are tried). A function that only
// some of them have is declared here without `override`: where the base has it, it is overridden
// all the same; where not, it is a function that nobody calls.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include <cstring>

#define PLIMSOLL_EXPORT extern "C" __attribute__((visibility("default")))

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4, "torch 2.4 or newer is needed");

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr long kCudnn = 91900;
constexpr long kCuda = 13000;

struct PhantomHooks final : at::CUDAHooksInterface {
  void init() const {}
  void initCUDA() const {}
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuBLASLt() const { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const { return 0; }
  void setCurrentDevice(DeviceIndex) const {}
  DeviceIndex exchangeDevice(DeviceIndex) const { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const { return true; }
  bool supportsBFloat16RNNWithCuDNN() const { return true; }
  long versionCuDNN() const override { return kCudnn; }
  long versionRuntimeCuDNN() const { return kCudnn; }
  long versionCUDART() const override { return kCuda; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(DeviceIndex) const {
    return at::detail::getDefaultCPUGenerator();
  }
  const at::Generator& getDefaultCUDAGenerator(DeviceIndex) const {
    return at::detail::getDefaultCPUGenerator();
  }
};
static_assert(sizeof(PhantomHooks) == sizeof(at::CUDAHooksInterface), "only functions may differ");

struct PhantomGuard final : c10::impl::DeviceGuardImplInterface {
  static Device Only() { return {DeviceType::CUDA, 0}; }
  static Stream OnlyStream() { return Stream(Stream::DEFAULT, Only()); }

  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return Only(); }
  Device getDevice() const override { return Only(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return OnlyStream(); }
  Stream getDefaultStream(Device) const override { return OnlyStream(); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return OnlyStream(); }
  Stream getNewStream(Device, int) const { return OnlyStream(); }
  Stream exchangeStream(Stream) const noexcept override { return OnlyStream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  bool isStreamCapturing(const Stream&) const { return false; }
  void synchronizeEvent(void*) const {}
  void synchronizeDevice(const DeviceIndex) const {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

using FunctionTable = void*;  // what the first word of an object with virtual functions points to

FunctionTable TableOf(const at::CUDAHooksInterface& hooks) {
  FunctionTable table = nullptr;
  std::memcpy(&table, static_cast<const void*>(&hooks), sizeof(table));
  return table;
}

void SetTable(const at::CUDAHooksInterface& hooks, FunctionTable table) {
  void* object = const_cast<at::CUDAHooksInterface*>(&hooks);
  std::memcpy(object, &table, sizeof(table));
}

struct Replaced {
  FunctionTable hooks = nullptr;
  const c10::impl::DeviceGuardImplInterface* guard = nullptr;
  bool installed = false;
};
Replaced replaced;

auto& GuardSlot() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(DeviceType::CUDA)];
}

}  // namespace

// Never freed: torch may still ask them while the process ends.
PLIMSOLL_EXPORT void plimsoll_phantom_install() {
  static const auto* const hooks = new PhantomHooks();
  static const auto* const guard = new PhantomGuard();
  if (replaced.installed) return;
  const at::CUDAHooksInterface& theirs = at::detail::getCUDAHooks();
  replaced = {TableOf(theirs), GuardSlot().load(), true};
  SetTable(theirs, TableOf(*hooks));
  GuardSlot().store(guard);
}

PLIMSOLL_EXPORT void plimsoll_phantom_remove() {
  if (!replaced.installed) return;
  SetTable(at::detail::getCUDAHooks(), replaced.hooks);
  GuardSlot().store(replaced.guard);
  replaced.installed = false;
}

/// Which torch this was compiled against, "2.13.0".
PLIMSOLL_EXPORT const char* plimsoll_phantom_torch() { return TORCH_VERSION; }
