// What a file is, by its content: so that a command that is given the wrong one can say which
// command is the right one, and `plimsoll FILE` can choose it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launch/processes.h"
#include "report/next_step.h"

namespace plimsoll {

enum class FileKind : std::uint8_t {
  kMissing,
  kText,           // a log, or nothing that is known: explain says which
  kTrace,          // a memory snapshot, a profiler's trace, an nsys export
  kStep,           // a captured step
  kHostRecord,     // the host's memory, as `plimsoll run` sampled it, and no snapshots
  kRunFolder,      // what `plimsoll run` left, or a folder with snapshots
  kFolder,         // any other
  kConfiguration,  // config.json of a Hugging Face model, or "hf:" before it
  kScript,
  kNotebook,
  kPlan,         // plimsoll plan --json
  kAnswer,       // another document of this program's
  kCalibration,  // of plimsoll.calibrate
  kPage,         // of plimsoll report, predict --html, plan --html
  kWeights,      // safetensors, or what torch.save wrote
  kBuffers,      // a table for plimsoll pack
  kImage,        // a screenshot
};

/// Looks at the first bytes, unpacked; never waits for a pipe, which is a kText.
FileKind KindOf(const std::string& path);

/// A kText that is a log, or another text that is certainly not JSON.
bool IsPlainText(const std::string& path);

/// "a captured training step"
std::string_view KindName(FileKind kind);

/// What can be done with such a file, the first thing first.
std::vector<NextStep> UsesOf(FileKind kind, const std::string& path);

/// Why a command that takes files of these kinds cannot use this one, and which command can;
/// nothing where it may, or where the file is not known to be anything else.
std::optional<Error> WrongKind(const std::string& path, std::vector<FileKind> taken,
                               std::string_view wanted);

/// The files of a run that belong together: its snapshots, and the texts of the errors that ended
/// its processes.
struct FolderFiles {
  std::vector<std::string> snapshots;
  std::vector<std::string> error_texts;
  /// Of the host's memory.
  std::vector<std::string> hosts = {};
  /// What exceptions of its processes said of others that ended.
  std::vector<std::string> worker_texts = {};
  /// Which processes of a run are left out, in a sentence.
  std::string others = {};
  /// Which processes of a run's folder left no end or no snapshot.
  std::string missing = {};
};

FolderFiles FilesOf(const FilesOfRun& run);

/// Of what `plimsoll run` left, those that it explained; of any other folder, its snapshots and the
/// error texts that have their names (engine.pickle, engine.error.txt). A file is itself.
FolderFiles FilesBehind(const std::string& path);

/// WrongKind for commands that take whatever explain reads, or a folder of it.
std::optional<Error> WrongForRecords(const std::string& path);

/// The paths with each folder replaced by its snapshots, or what is wrong with one.
Result<std::vector<std::string>> RecordFiles(const std::vector<std::string>& paths);

/// The one record that a command takes: a file, or the only snapshot of a folder.
Result<std::string> RecordFile(const std::string& path);

}  // namespace plimsoll
