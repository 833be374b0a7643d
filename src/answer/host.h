// The host's memory in an answer: what the processes of a job held, who was killed, and how sure it
// is that it was for lack of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "timeline/host_record.h"

namespace plimsoll {

/// A rise that was not given back.
struct HostGrowth {
  Bytes from = 0;
  Bytes to = 0;
  /// Seconds since 1970.
  double since = 0;
  double until = 0;

  double seconds() const { return until - since; }
  /// In bytes a second.
  double rate() const { return seconds() > 0 ? double(to - from) / seconds() : 0; }
};

/// One process of the job's tree.
struct HostProcessReport {
  HostProcess process;
  /// Where the report's account is: at the kill, else at the peak of all together. Nothing where it
  /// was not there then.
  std::optional<HostShare> then;
  Bytes peak_resident = 0;
  double peak_time = 0;
  std::optional<HostGrowth> growth;
  /// How it ended, where that was seen.
  std::optional<HostDeath> death;
};

/// Whether the kernel killed a process because memory was full.
enum class KillCertainty : std::uint8_t {
  kCertain,   // its counter or its log says so
  kLikely,    // a SIGKILL while memory was nearly full
  kUnlikely,  // a SIGKILL with memory to spare, or the counter did not move
};
/// As JSON has it: "certain".
std::string_view KillCertaintyName(KillCertainty certainty);

/// A process that was killed: by the kernel, or by somebody.
struct HostKill {
  /// Index of HostReport::processes.
  std::size_t process = 0;
  double time = 0;
  int signal = 9;
  KillCertainty certainty = KillCertainty::kLikely;
  /// /dev/shm was full, which ends whoever writes to it by a bus error.
  bool shared_memory = false;
  std::string because;
};

/// Whose limit is the tightest.
enum class HostLimitKind : std::uint8_t { kMachine, kGroup };
std::string_view HostLimitKindName(HostLimitKind kind);

struct HostReport {
  std::string file;
  std::string host;
  int utc_offset = 0;
  std::size_t samples = 0;
  double began = 0;
  double ended = 0;
  /// What there is for all, and whose limit that is.
  std::optional<Bytes> limit;
  HostLimitKind limit_kind = HostLimitKind::kMachine;
  /// The moment that the account is of.
  double instant = 0;
  /// What the job's processes held together then, and at most.
  Bytes together = 0;
  Bytes peak_together = 0;
  double peak_time = 0;
  /// Some had no proportional size: pages that several share are counted for each.
  bool counted_twice = false;
  /// What was left of the limit at that moment, and at the least.
  std::optional<Bytes> left;
  std::optional<Bytes> least_left;
  std::optional<Bytes> shm;
  std::optional<Bytes> shm_size;
  std::vector<HostProcessReport> processes;
  /// In order of time; the first is what ended the job.
  std::vector<HostKill> kills;
  std::vector<std::string> notes;
};

/// "loader worker 3 of rank 0 (pid 812)".
std::string HostProcessText(const HostProcess& process);
/// "12:03:10", by the clocks of that host.
std::string HostTimeText(double time, int utc_offset);

}  // namespace plimsoll
