// The file host.jsonl of a run: what was sampled of the host's memory, a line each, written as it
// comes so that it is there whoever is killed. docs/formats/host.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "timeline/host_record.h"

namespace plimsoll {

/// The name of that file in the folder of a run.
inline constexpr const char* kHostFile = "host.jsonl";

/// A sample while it is taken: HostShare::process is the number of the process.
std::string HeaderLine(const HostRecord& record);
std::string ProcessLine(const HostProcess& process);
std::string SampleLine(const HostSample& sample);
std::string DeathLine(std::int64_t pid, const HostDeath& death);
std::string EndLine(const HostEnd& end);

/// Appends, and keeps the file below a size: of the older samples every other one goes then, of
/// two the one in which the processes held less.
class HostLog {
 public:
  HostLog(std::string path, std::size_t most_bytes = std::size_t{4} << 20);
  ~HostLog();
  HostLog(const HostLog&) = delete;
  HostLog& operator=(const HostLog&) = delete;

  void Header(const HostRecord& record);
  void Process(const HostProcess& process);
  void Sample(const HostSample& sample);
  void Death(std::int64_t pid, const HostDeath& death);
  void End(const HostEnd& end);
  /// Hands what was told since then to the system: from there on no kill takes it back.
  void Flush();

 private:
  enum class What : std::uint8_t { kKept, kProcess, kSample };
  struct Entry {
    std::string line;
    What what = What::kKept;
    /// Of a process its number; of a sample what all processes held.
    std::int64_t figure = 0;
    std::vector<std::int64_t> pids = {};
  };

  void Add(Entry entry);
  void Thin();
  void DropForgotten();

  std::string path_;
  std::size_t most_bytes_;
  int file_ = -1;
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  std::string unwritten_;
};

}  // namespace plimsoll
