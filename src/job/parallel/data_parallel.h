// DistributedDataParallel around the captured model: its buckets and its copies of the buffers. And
// what ZeRO divides among its ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct DataParallel {
  /// What each rank has only its part of, in equal parts: nothing, the optimizer's state (ZeRO-1),
  /// the gradients as well (ZeRO-2).
  enum class Zero : std::uint8_t { kNothing, kState, kGradients };

  /// At least 2; only time, and what NCCL takes, depend on it.
  std::int64_t ranks = 8;
  /// bucket_cap_mb
  Bytes bucket = 25 * kMiB;
  /// gradient_as_bucket_view=True: gradients lie in the buckets.
  bool views = false;
  Zero zero = Zero::kNothing;
  /// Else that of the captured job.
  std::optional<Backend> backend = {};
};

/// "8", "8:views", "8:bucket100" (bucket_cap_mb=100), "8:views:bucket100"; "zero1:8", "zero2:8";
/// ":gloo" or ":nccl" behind any of them.
Result<DataParallel> ParseDataParallel(std::string_view text);
/// As ParseDataParallel takes it.
std::string DataParallelText(const DataParallel& options);

/// What is assumed beyond DDP, in words for the user; empty without ZeRO.
std::string DescribeDataParallel(const DataParallel& options);

/// The variant as one rank of several runs it. Adds to the step's strings.
Variant AddDataParallel(Job& job, const Variant& variant, const DataParallel& options = {});

}  // namespace plimsoll
