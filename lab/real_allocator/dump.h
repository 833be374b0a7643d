// The allocator's state, history and counters as JSON; record.py makes a snapshot file of it.
#ifndef PLIMSOLL_TOOLS_REAL_ALLOCATOR_DUMP_H_
#define PLIMSOLL_TOOLS_REAL_ALLOCATOR_DUMP_H_

#include <nlohmann/json.hpp>

// {"segments": […], "trace": [[action, address, size, stream, µs, place, pool, text…], …],
//  "settings": {…}}
nlohmann::json DumpSnapshot();

// With the names of torch.cuda.memory_stats().
nlohmann::json DumpStats();

#endif  // PLIMSOLL_TOOLS_REAL_ALLOCATOR_DUMP_H_
