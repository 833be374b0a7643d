// FSDP2 around the captured model: fully_shard on each block and then on the whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "step/file/step.h"

namespace plimsoll {

struct Sharding {
  /// At least 2.
  std::int64_t ranks = 2;
  /// reshard_after_forward=False: blocks keep their whole parameters for the backward.
  bool keep = false;
  /// The model is built on the meta device, so that it is never whole on this one.
  bool meta = false;
};

/// "4", "4:keep", "4:meta", "4:keep:meta".
Result<Sharding> ParseSharding(std::string_view text);

/// The variant as the first of the ranks runs it. Adds to the step's strings and layouts.
Variant AddFullySharded(Step& step, const Variant& variant, const Sharding& sharding);

/// What is assumed of the job, in words for the user: which modules are blocks among it.
std::string DescribeSharding(const Step& step, const Variant& variant, const Sharding& sharding);

}  // namespace plimsoll
