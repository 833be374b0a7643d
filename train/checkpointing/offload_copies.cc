#include "train/checkpointing/offload_copies.h"

#include <cstring>

#include "train/budget/host_memory.h"

namespace plimsoll::train {
namespace {

class CpuCopyQueues : public CopyQueues {
 public:
  bool Ready() const override { return true; }
  at::Tensor NewHost(Bytes bytes) override { return HostTensor({bytes}, at::kByte, false); }
  std::unique_ptr<Copy> ToHost(void* to, const void* from, Bytes bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return nullptr;
  }
  std::unique_ptr<Copy> ToDevice(void* to, const void* from, Bytes bytes, const Copy*) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return nullptr;
  }
  void Synchronize() override {}
};

}  // namespace

std::unique_ptr<CopyQueues> CopyQueuesOf(c10::Device device) {
  if (device.is_cuda()) return CudaCopyQueues(device);
  TORCH_CHECK(device.is_cpu(), "plimsoll::train knows CPU and CUDA devices, not ", device);
  return std::make_unique<CpuCopyQueues>();
}

}  // namespace plimsoll::train
