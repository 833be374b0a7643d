// What of a block a selective checkpoint should keep: a few ways, from keeping little to keeping
// much.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "job/transforms/kept_calls.h"

namespace plimsoll {

/// What one call of a block's forward made.
struct MadeResult {
  std::string_view op;
  /// Which of the operator's calls in the block.
  std::size_t nth = 0;
  /// What it takes to make it again, and to keep it.
  double us = 0;
  Bytes bytes = 0;
  bool random = false;
  /// A checkpoint comes to it before it has all that the backward asks for.
  bool repeated = true;
  bool keepable = true;
};

/// In the order of the forward. Each way keeps what the ones before it do, and what takes the
/// longest for its bytes of the rest: that is the fastest for what it keeps, if sizes are small
/// beside the whole. What is random is kept as a whole or not at all, lest a part of it be repeated
/// with other numbers.
std::vector<std::vector<KeptCall>> WaysToKeep(const std::vector<MadeResult>& results,
                                              std::size_t most);

}  // namespace plimsoll
