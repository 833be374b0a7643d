#include "train/checkpointing/offload_pool.h"

namespace plimsoll::train {

HostPool::~HostPool() { Release(); }

at::Tensor HostPool::TakeFree(Bytes bytes) {
  const auto fit = free_.lower_bound(bytes);
  // A much larger one is wanted by somebody else.
  if (fit == free_.end() || fit->first > 2 * bytes) return {};
  at::Tensor buffer = std::move(fit->second);
  free_.erase(fit);
  return buffer;
}

at::Tensor HostPool::Take(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  if (at::Tensor buffer = TakeFree(bytes); buffer.defined()) return buffer;
  // Sizes have changed: what is left of the old ones makes room.
  if (limit_ && bytes_ + bytes > *limit_) ReleaseLocked();
  if (limit_ && bytes_ + bytes > *limit_) return {};
  try {
    at::Tensor buffer = queues_->NewHost(bytes);
    bytes_ += bytes;
    return buffer;
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

void HostPool::Return(at::Tensor buffer) {
  const std::lock_guard lock(mutex_);
  const Bytes bytes = buffer.numel();
  free_.emplace(bytes, std::move(buffer));
}

Bytes HostPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void HostPool::Release() {
  const std::lock_guard lock(mutex_);
  ReleaseLocked();
}

void HostPool::ReleaseLocked() {
  if (free_.empty()) return;
  // A buffer is returned when its copies are enqueued, not when they are done.
  queues_->Synchronize();
  for (const auto& [bytes, buffer] : free_) bytes_ -= bytes;
  free_.clear();
}

}  // namespace plimsoll::train
