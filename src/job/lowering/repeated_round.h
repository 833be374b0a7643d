// A micro-batch that asks for what the one before it asked for, so that each further one will.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "job/lowering/lower.h"

namespace plimsoll {

/// How many requests and blocks there were.
struct RequestMark {
  std::size_t requests = 0;
  std::size_t blocks = 0;
};

/// The micro-batches of the step that is lowered whose ends are marked.
class RepeatedRounds {
 public:
  void Clear() { ends_.clear(); }
  /// One ends here, and is repeated so often: as requests, where it makes those of the one before
  /// it.
  void End(std::uint32_t times, Lowered& lowered);

 private:
  std::vector<RequestMark> ends_;
};

}  // namespace plimsoll
