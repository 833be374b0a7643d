// A CPU allocator that counts, keeps to a limit, and can fail on purpose: what makes everything in
// this library testable without a GPU.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.h"

namespace plimsoll::train {

class CpuAllocator final : public c10::Allocator {
 public:
  /// The one. It is torch's CPU allocator in every program that has this library.
  static CpuAllocator& Installed();

  Bytes allocated() const { return allocated_; }
  Bytes peak() const { return peak_; }
  void ResetPeak() { peak_ = allocated_.load(); }

  void SetLimit(std::optional<Bytes> limit) { limit_ = limit.value_or(kNoLimit); }
  std::optional<Bytes> limit() const;

  /// Requests since the program began.
  std::int64_t requests() const { return requests_; }
  /// Bytes of all of them.
  Bytes made() const { return made_; }
  /// The request with this number fails, once, as if there were no memory.
  void FailAt(std::int64_t request) { fail_at_ = request; }

  /// RAII guard: what this thread allocates counts in no budget, as memory of the host does not
  /// where the device is a GPU.
  class Uncounted {
   public:
    Uncounted() { ++uncounted_; }
    ~Uncounted() { --uncounted_; }
    Uncounted(const Uncounted&) = delete;
    Uncounted& operator=(const Uncounted&) = delete;
  };
  /// The memory of a tensor that was made under Uncounted counts from now on. Throws
  /// c10::OutOfMemoryError, and it does not, where there is no room for it.
  void CountFromNowOn(const at::TensorBase& tensor);

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

 private:
  static constexpr Bytes kNoLimit = INT64_MAX;
  static thread_local int uncounted_;

  CpuAllocator() = default;
  void* Take(std::size_t bytes);
  void Count(Bytes bytes);
  /// The same, as one request.
  void CountRequest(Bytes bytes);
  static void Free(void* data);

  std::atomic<Bytes> allocated_ = 0;
  std::atomic<Bytes> peak_ = 0;
  std::atomic<Bytes> limit_ = kNoLimit;
  std::atomic<std::int64_t> requests_ = 0;
  std::atomic<Bytes> made_ = 0;
  std::atomic<std::int64_t> fail_at_ = -1;
};

}  // namespace plimsoll::train
