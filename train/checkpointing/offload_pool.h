// Host memory that is used again: pinning some takes milliseconds. Internal to Offload.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "train/checkpointing/offload_copies.h"

namespace plimsoll::train {

class HostPool {
 public:
  HostPool(std::shared_ptr<CopyQueues> queues, std::optional<Bytes> limit)
      : queues_(std::move(queues)), limit_(limit) {}
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// With at least so many bytes. Undefined where the host, or the limit, has no room for it.
  at::Tensor Take(Bytes bytes);
  /// The next to take it may write into it after copies that the device knows of.
  void Return(at::Tensor buffer);

  /// In use or not.
  Bytes bytes() const;
  /// Frees what is not in use.
  void Release();

 private:
  at::Tensor TakeFree(Bytes bytes);
  void ReleaseLocked();

  std::shared_ptr<CopyQueues> queues_;
  std::optional<Bytes> limit_;
  mutable std::mutex mutex_;
  std::multimap<Bytes, at::Tensor> free_;
  Bytes bytes_ = 0;
};

}  // namespace plimsoll::train
