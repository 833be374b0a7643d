// One loop over independent pieces of work on all cores.
#pragma once

#include <cstddef>
#include <functional>

namespace plimsoll {

/// Calls work(0) … work(count - 1), each once, on at most `threads` threads (0: one per core). Work
/// that throws stops the loop; the caller gets the exception, of several that of the lowest index.
void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& work,
                 unsigned threads = 0);

}  // namespace plimsoll
