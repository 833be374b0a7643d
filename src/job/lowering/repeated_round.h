// A micro-batch that asks for what the one before it asked for, so that each further one will.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "allocator/replay/workload.h"

namespace plimsoll {

/// How many requests and blocks there were.
struct RequestMark {
  std::size_t requests = 0;
  std::size_t blocks = 0;
};

/// The requests between the last two ends, if they are those between the two before, each of a
/// block that comes as much later; and if they free as many blocks as they take.
std::optional<RepeatedRequests> FindRepeated(const std::vector<Request>& requests,
                                             std::span<const RequestMark> ends);

}  // namespace plimsoll
