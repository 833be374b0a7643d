#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "train/checkpointing/offload_copies.h"

namespace plimsoll::train {
namespace {

/// A point in a stream. Of the runtime itself: ATen's has headers that want all of CUDA's
/// libraries.
class Event {
 public:
  explicit Event(c10::cuda::CUDAStream at) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    if (const cudaError_t error = cudaEventRecord(event_, at.stream()); error != cudaSuccess) {
      C10_CUDA_CHECK_WARN(cudaEventDestroy(event_));
      C10_CUDA_CHECK(error);
    }
  }
  /// Destroying one that has not been reached is allowed, as is one that a stream still waits for.
  ~Event() { C10_CUDA_CHECK_WARN(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool Reached() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaSuccess) return true;
    // "Not ready" must not be found by whoever asks for the last error next.
    if (state == cudaErrorNotReady) (void)cudaGetLastError();
    return false;
  }
  /// Only warns: memory is given up in destructors too.
  void HoldBack(c10::cuda::CUDAStream stream) const {
    C10_CUDA_CHECK_WARN(cudaStreamWaitEvent(stream.stream(), event_, 0));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaCopy : public Copy {
 public:
  /// What `queue` has been given so far. `compute` is where the memory on the device comes from.
  CudaCopy(c10::cuda::CUDAStream queue, c10::cuda::CUDAStream compute)
      : compute_(compute), end_(queue) {}

  bool Done() const override { return end_.Reached(); }
  void HoldBack() override {
    const c10::cuda::CUDAGuard device(compute_.device());
    end_.HoldBack(compute_);
    // Backward runs on the stream of forward; a user who has it otherwise computes on this one.
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(compute_.device_index());
    if (current != compute_) end_.HoldBack(current);
  }
  const Event& end() const { return end_; }

 private:
  c10::cuda::CUDAStream compute_;
  Event end_;
};

/// A queue for each direction, since the bus carries both at once.
class CudaCopyQueuesImpl : public CopyQueues {
 public:
  explicit CudaCopyQueuesImpl(c10::Device device)
      : device_(device),
        out_(c10::cuda::getStreamFromPool(false, device.index())),
        back_(c10::cuda::getStreamFromPool(false, device.index())) {}

  /// Events cannot be asked for while a graph is captured.
  bool Ready() const override {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None;
  }

  /// Past torch's allocator of pinned memory, which rounds sizes up to powers of two.
  at::Tensor NewHost(Bytes bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    void* data = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
    if (error != cudaSuccess) (void)cudaGetLastError();
    TORCH_CHECK_WITH(OutOfMemoryError, error == cudaSuccess, "the host has no ", bytes,
                     " bytes of pinned memory left: ", cudaGetErrorString(error));
    return at::from_blob(
        data, {bytes}, [](void* blob) { C10_CUDA_CHECK_WARN(cudaFreeHost(blob)); },
        at::TensorOptions(at::kByte));
  }

  std::unique_ptr<Copy> ToHost(void* to, const void* from, Bytes bytes) override {
    return Enqueue(out_, to, from, bytes, cudaMemcpyDeviceToHost, nullptr);
  }
  std::unique_ptr<Copy> ToDevice(void* to, const void* from, Bytes bytes,
                                 const Copy* first) override {
    return Enqueue(back_, to, from, bytes, cudaMemcpyHostToDevice, first);
  }

  void Synchronize() override {
    C10_CUDA_CHECK_WARN(cudaStreamSynchronize(out_.stream()));
    C10_CUDA_CHECK_WARN(cudaStreamSynchronize(back_.stream()));
  }

 private:
  /// After what has been computed so far: for a copy out that is what makes the data; for a copy
  /// back it is the last use of memory that the allocator has just handed out again. It also comes
  /// after the last copy back out of a host buffer that is used again, because computation was held
  /// back for that one.
  std::unique_ptr<Copy> Enqueue(c10::cuda::CUDAStream queue, void* to, const void* from,
                                Bytes bytes, cudaMemcpyKind kind, const Copy* first) {
    const c10::cuda::CUDAGuard guard(device_);
    const c10::cuda::CUDAStream compute = c10::cuda::getCurrentCUDAStream(device_.index());
    Event(compute).HoldBack(queue);
    if (first != nullptr) static_cast<const CudaCopy*>(first)->end().HoldBack(queue);
    C10_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, queue.stream()));
    return std::make_unique<CudaCopy>(queue, compute);
  }

  c10::Device device_;
  c10::cuda::CUDAStream out_;
  c10::cuda::CUDAStream back_;
};

}  // namespace

std::unique_ptr<CopyQueues> CudaCopyQueues(c10::Device device) {
  if (!device.has_index()) device = c10::Device(c10::kCUDA, c10::cuda::current_device());
  return std::make_unique<CudaCopyQueuesImpl>(device);
}

}  // namespace plimsoll::train
