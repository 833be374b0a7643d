// The host's memory while a job ran: what each process of its tree held, about once a second, and
// how the processes ended. What `plimsoll run` samples, and what is read from its file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// What a process of a job is for, as far as its parent, its command and its name tell.
enum class HostRole : std::uint8_t {
  kMain,          // the command that was typed
  kRank,          // one of a distributed job
  kLoaderWorker,  // of PyTorch's DataLoader, which names its workers (PyTorch 2.6 and newer)
  kWorker,        // forked or spawned by Python: a DataLoader's too, in older releases
  kOther,
};
/// As the file has it: "loader_worker".
std::string_view HostRoleName(HostRole role);
std::optional<HostRole> HostRoleOf(std::string_view name);

struct HostProcess {
  std::int64_t pid = 0;
  /// In ticks since the machine began: tells two processes of one number apart.
  std::int64_t started = 0;
  std::int64_t parent = 0;
  HostRole role = HostRole::kOther;
  /// Of a worker: the lowest that no other living worker of its parent had, from 0.
  std::optional<int> number = {};
  /// Its own, or that of the rank that it works for.
  std::optional<int> rank = {};
  /// The program, and the script that it runs.
  std::string command = {};
};

/// What one process held at one moment.
struct HostShare {
  /// Index of HostRecord::processes; while sampling, of the process itself.
  std::size_t process = 0;
  Bytes resident = 0;
  /// Of it in shared memory: /dev/shm, memory that is mapped by several.
  Bytes shared = 0;
  /// Pages that several have count in parts. Asked for less often, since it takes long.
  std::optional<Bytes> proportional = {};
  /// Page-locked by PyTorch.
  std::optional<Bytes> pinned = {};
};

/// How often the kernel has killed for lack of memory so far; nothing where it does not tell.
struct OomKills {
  /// In the control group of the job.
  std::optional<std::int64_t> group = {};
  std::optional<std::int64_t> machine = {};
};

struct HostSample {
  /// Seconds since 1970.
  double time = 0;
  /// What programs could still get, of the whole machine.
  std::optional<Bytes> available = {};
  std::optional<Bytes> swap_free = {};
  /// Used of /dev/shm.
  std::optional<Bytes> shm = {};
  /// Used by the control group with the limit, without the files that it merely caches.
  std::optional<Bytes> group = {};
  OomKills kills = {};
  std::vector<HostShare> held = {};
  /// Resident of processes that are too many to be listed.
  Bytes others = 0;
};

/// A process that is gone. Neither signal nor code: its parent had taken note before we could.
struct HostDeath {
  std::size_t process = 0;
  double time = 0;
  std::optional<int> signal = {};
  std::optional<int> code = {};
};

/// The control group whose limit is the tightest.
struct HostGroup {
  std::string path = {};
  std::optional<Bytes> limit = {};
};

/// How the command ended that was typed.
struct HostEnd {
  double time = 0;
  int code = 0;
  std::optional<int> signal = {};
  /// Processes that the kernel's log says were killed for lack of memory.
  std::vector<std::int64_t> named_by_kernel = {};
  OomKills kills = {};
};

struct HostRecord {
  std::string file = {};
  std::string host = {};
  double began = 0;
  /// Seconds that the clocks there are ahead of UTC.
  int utc_offset = 0;
  std::optional<Bytes> memory = {};
  std::optional<Bytes> swap = {};
  std::optional<Bytes> shm = {};
  std::optional<HostGroup> group = {};
  OomKills kills = {};
  std::vector<HostProcess> processes = {};
  std::vector<HostSample> samples = {};
  std::vector<HostDeath> deaths = {};
  /// Nothing where `plimsoll run` was killed itself, or still runs.
  std::optional<HostEnd> end = {};
  /// Lines that could not be used, by reason.
  std::map<std::string, std::int64_t> skipped = {};
};

}  // namespace plimsoll
