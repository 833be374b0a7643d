// Where a step comes from when it is in no file yet: `--run -- python train.py --batch-size
// {batch}`, a script captured on the spot, or `hf:config.json` and `hf:NAME`, a model by its
// configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/command/flags.h"
#include "hardware/gpu.h"
#include "job/file/job.h"
#include "launch/assumptions.h"
#include "launch/tuning.h"

namespace plimsoll {

struct ScriptFlags {
  bool run = false;
  std::vector<std::string> command;
  std::optional<std::string> keep;
  /// Of hf:config.json: how it is fine-tuned, and tokens in a sequence (--length says so too).
  Tuning tuning;
  std::optional<std::int64_t> sequence;
  /// Of a job over a length too: what is asked about, and what to capture.
  std::optional<std::int64_t> length;
  std::optional<std::string> lengths;
  /// All sizes of an epoch's batches are wanted, and in how many seconds.
  bool data = false;
  double data_seconds = 50;
  /// Of values that a capture does not have.
  Assumptions assume;
  /// The script may connect to other machines.
  bool allow_network = false;

  void AddTo(Flags& flags);
  /// A part of it: lengths, what is assumed of values, and the network.
  void AddPointsTo(Flags& flags);
};

/// What is to be read or captured.
struct StepRequest {
  const std::vector<std::string>& files;
  const ScriptFlags& script;
  /// To capture a script with; the package's own unless given.
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  /// That which is asked about.
  std::optional<std::int64_t> batch = {};
  /// Whose kernels are assumed in a capture; empty where no card was named.
  std::string gpu;
  /// Of hf:config.json: what to make of it, as it says where these are empty.
  std::string precision = {};
  std::string optimizer = {};
  /// Of hf:config.json: every precision that `plan` compares.
  bool every_precision = false;
  /// Of hf:config.json: at several lengths; around this one, where the answer is near it.
  bool over_lengths = false;
  std::optional<std::int64_t> around = {};
};

/// The step of a file, of a script, which runs for a minute or so, or of a configuration.
Result<Job> ReadOrCapture(const StepRequest& request);

/// The job at the length that is asked about, the longest of the capture unless one is; as it is
/// where it has none.
Result<Job> AtAskedLength(Job job, const std::optional<std::int64_t>& length);

/// Whose kernels a capture assumes: the card that was named, or the one that stands for its size;
/// nothing where none was.
std::string CapturedFor(const std::optional<Gpu>& gpu);

/// Whether a path is hf:config.json or hf:NAME, or a configuration as it lies there.
bool IsConfiguration(const std::string& path);

/// The length that a captured job is to be put at: none of a model that was made at its length.
std::optional<std::int64_t> LengthToPutAt(const ScriptFlags& flags,
                                          const std::vector<std::string>& files, const Job& job);

/// Whether all known names are asked for: hf:list.
bool AsksForNames(const std::vector<std::string>& files);

/// Says what is missing or too much: a step comes from files or from a script.
std::optional<Error> CheckSource(const ScriptFlags& flags, const std::vector<std::string>& files);

/// Says so where --run follows no script in that precision; empty: none is asked for.
std::optional<Error> CheckFollowed(std::string_view precision);

/// Two numbers with a comma between them: "8,16".
std::optional<Error> ReadBatches(const std::string& text,
                                 std::optional<std::pair<std::int64_t, std::int64_t>>& to);

}  // namespace plimsoll
