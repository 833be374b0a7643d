// An unedited training script, run on tensors without memory by the Python package that is part of
// this program (python/plimsoll/scripts), and the step file that comes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace plimsoll {

struct ScriptJob {
  /// As it is typed, with "{batch}" where the batch size stands.
  std::vector<std::string> command;
  /// The package's own choice where there are none.
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  std::string gpu;
  /// Where the step file goes.
  std::string step_file;
};

/// The Python that would run the command: its first word, the one beside a launcher such as
/// torchrun, or python3.
std::string PythonOf(const std::vector<std::string>& command);

/// Runs the script and writes the step file, or says why that cannot be.
std::optional<Error> CaptureScript(const ScriptJob& job);

}  // namespace plimsoll
