// DistributedDataParallel around the captured model: its buckets and its copies of the buffers.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "step/file/step.h"

namespace plimsoll {

struct DataParallel {
  /// At least 2; only time, and what NCCL takes, depend on it.
  std::int64_t ranks = 8;
  /// bucket_cap_mb
  Bytes bucket = 25 * kMiB;
  /// gradient_as_bucket_view=True: gradients lie in the buckets.
  bool views = false;
};

/// "8", "8:views", "8:bucket100" (bucket_cap_mb=100), "8:views:bucket100".
Result<DataParallel> ParseDataParallel(std::string_view text);

/// The variant as one rank of several runs it. Adds to the step's strings.
Variant AddDataParallel(Step& step, const Variant& variant, const DataParallel& options = {});

}  // namespace plimsoll
