// What an Nsight Systems export holds about GPU memory, as it stands in its tables.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/interner.h"
#include "readers/sqlite/database.h"

namespace plimsoll {

/// The table of allocations and frees; there only if something was captured.
inline constexpr const char* kMemoryTable = "CUDA_GPU_MEMORY_USAGE_EVENTS";

/// ENUM_CUDA_MEM_KIND.
enum class MemoryKind : std::int64_t {
  kPageable = 0,
  kPinned = 1,
  kDevice = 2,
  kArray = 3,
  kManaged = 4,
  kDeviceStatic = 5,
  kManagedStatic = 6,
};

/// One row of kMemoryTable.
struct MemoryRow {
  std::int64_t start_ns = 0;
  /// Hardware, virtual machine, process and (zero) thread in one number; see ProcessOf.
  std::int64_t global_pid = 0;
  std::uint64_t address = 0;
  Bytes bytes = 0;
  std::int64_t correlation = -1;  // of the API call; -1: not said
  std::int64_t stream = 0;
  std::int32_t device = 0;
  MemoryKind kind = MemoryKind::kDevice;
  bool freed = false;
  StringId name;  // of a variable in a module
};

/// One function of a backtrace: which, and in which library.
struct ChainFrame {
  std::int64_t depth = 0;  // 0 is the innermost
  std::int64_t symbol = 0;
  std::int64_t module = 0;
};

/// The CUDA API call that a row belongs to.
struct ApiCall {
  std::int64_t name = 0;    // in strings
  std::int64_t chain = -1;  // in chains; -1: no backtrace
};

struct NsysContent {
  std::vector<MemoryRow> rows;  // in order of time
  StringTable names;
  /// When the recording began, nanoseconds since 1970; 0 if the file does not say.
  std::int64_t epoch_ns = 0;
  /// By process and correlation id.
  std::map<std::pair<std::int64_t, std::int64_t>, ApiCall> calls;
  HashMap<std::int64_t, std::vector<ChainFrame>> chains;
  HashMap<std::int64_t, std::string> strings;
  std::map<std::string, std::int64_t> skipped;
};

/// The process id in a global one: 8 bits hardware, 8 virtual machine, 24 process, 24 thread.
constexpr std::int64_t ProcessOf(std::int64_t global_id) { return (global_id >> 24) & 0xffffff; }

/// Reads the memory events, and what can be found out about who caused them.
Result<NsysContent> ReadContent(Database& database, const Input& input);

}  // namespace plimsoll
