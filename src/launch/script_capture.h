// Step files that the Python package makes which is part of this program: of an unedited training
// script, run on tensors without memory (python/plimsoll/scripts), or of a model's configuration
// or name alone (python/plimsoll/capturing/configuration.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launch/assumptions.h"
#include "launch/tuning.h"

namespace plimsoll {

struct ScriptJob {
  /// As it is typed, with "{batch}" where the batch size stands.
  std::vector<std::string> command;
  /// The package's own choice where there are none.
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  /// What is asked about; where the data decide sizes, the script is followed with it for long.
  std::optional<std::int64_t> batch;
  /// Where another word stands in braces: what is asked about, or "128,192,256".
  std::optional<std::int64_t> length;
  std::optional<std::string> lengths;
  /// To look through an epoch's data; 0: they are not looked through.
  double data_seconds = 0;
  Assumptions assume = {};
  /// Connections of the script to other machines are refused unless this is set.
  bool allow_network = false;
  std::string gpu;
  /// In every precision that `plan` compares.
  bool every_precision = false;
  /// Where the step file goes.
  std::string step_file;
};

/// A Hugging Face model by its config.json, the folder that has it, or its name.
struct ConfigurationJob {
  std::string path;
  Tuning tuning = {};
  /// Tokens in a sequence.
  std::optional<std::int64_t> sequence;
  /// At several lengths in place of one; around the one that is given, where the answer is near it.
  bool over_lengths = false;
  std::optional<std::int64_t> around = {};
  /// As the configuration and torch have them where they are empty.
  std::string precision;
  std::string optimizer;
  Assumptions assume = {};
  std::string gpu;
  /// In every precision that `plan` compares.
  bool every_precision = false;
  std::string step_file;
};

/// The Python that would run the command: its first word, the one beside a launcher such as
/// torchrun, or python3.
std::string PythonOf(const std::vector<std::string>& command);

/// Runs the script and writes the step file, or says why that cannot be. If this process is to end
/// meanwhile, the script is ended too.
std::optional<Error> CaptureScript(const ScriptJob& job);

/// Makes the model and writes the step file, or says why that cannot be.
std::optional<Error> CaptureConfiguration(const ConfigurationJob& job);

/// Prints the models that are known by name.
std::optional<Error> ListModels();

}  // namespace plimsoll
