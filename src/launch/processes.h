// What the processes of a run left: their snapshots, and how each ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "launch/run_folder.h"

namespace plimsoll {

struct SnapshotFile {
  std::string path;
  Bytes bytes = 0;
  /// The ring buffer was full, so older events are lost.
  bool full = false;
  /// Set aside: an out-of-memory before the one, or the end, that the main snapshot is of.
  bool aside = false;
};

enum class ProcessEnd : std::uint8_t {
  kUnknown,    // it crashed, was killed, or still runs
  kExit,       // without an exception that reached Python
  kException,  // `detail` is its type
  kSignal,     // `detail` is its name
};

/// One process that initialised CUDA.
struct RecordedProcess {
  std::int64_t pid = 0;
  std::string host;
  std::optional<int> rank;
  /// Of which job, as its launcher says: several may have recorded into one folder. Empty where it
  /// does not say.
  std::string job;
  /// The script, or what a worker of Ray's calls itself.
  std::string program;
  /// How often a launcher had started the ranks anew.
  std::int64_t restart = 0;
  /// Seconds since 1970.
  double began = 0;
  double wrote = 0;
  std::int64_t ooms = 0;
  std::int64_t optimizer_steps = 0;
  ProcessEnd end = ProcessEnd::kUnknown;
  std::string detail;
  /// Of the exception, as far as it was kept.
  std::string text;
  /// Whether the script switched the history on itself.
  bool by_script = false;
  std::int64_t max_entries = 0;
  std::vector<SnapshotFile> snapshots;
  /// The text of the out-of-memory that ended it, if one did.
  std::optional<std::string> error_text;
  /// Spent in making and writing snapshots.
  double seconds = 0;

  /// The snapshot of its end.
  const SnapshotFile* Main() const;
};

/// By rank, then by when they began.
std::vector<RecordedProcess> ReadProcesses(const RunFolder& folder);

/// Waits until every process here that has not told its end is gone, or the time is over.
void AwaitStragglers(const RunFolder& folder, double seconds);
bool IsAlive(const RecordedProcess& process);

struct FilesOfRun {
  /// What is to be known of processes that recorded and are not among those to explain, in a
  /// sentence; empty where there are none.
  std::string others;
  /// Which processes the record has no end or no snapshot of; empty where it is whole.
  std::string missing;
  std::vector<std::string> snapshots;
  /// Of those that an out-of-memory ended.
  std::vector<std::string> error_texts;
  /// What the host's memory was, second by second; nothing where that was not sampled.
  std::optional<std::string> host;
  /// What exceptions said of processes that ended, such as a DataLoader's workers.
  std::vector<std::string> worker_texts;
};

/// The files that belong together: of the last job that ran out, else the last, of each rank the
/// process of the last start, the one that ran out before the others. Without ranks a single
/// process, since nothing says that several are one job: the last that ran out, else the one that
/// lasted longest.
FilesOfRun FilesToExplain(const RunFolder& folder, const std::vector<RecordedProcess>& processes);

}  // namespace plimsoll
