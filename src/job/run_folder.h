// The folder of one run: the hook while the job runs, and what its processes leave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "job/child.h"

namespace plimsoll {

struct RunFolder {
  std::string path;  // as it is printed
};

/// Makes the folder, for its owner alone: the one that is wanted, which must not be there or be
/// empty, else plimsoll-run-1, or the next number that is free. With the hook in it.
Result<RunFolder> MakeRunFolder(const std::optional<std::string>& wanted);

struct HookSettings {
  std::optional<Bytes> budget;
  std::int64_t max_entries = 0;
  bool modules = false;
};

/// What the job's processes find in their environment.
std::vector<Variable> HookVariables(const RunFolder& folder, const HookSettings& settings);

/// Whether a process of the job imported torch. Before RemoveHook.
bool TorchWasImported(const RunFolder& folder);
/// The hook's complaints, each once, without the process that had it.
std::vector<std::string> HookComplaints(const RunFolder& folder);
/// Also removes the folder where nothing is left in it.
void RemoveHook(const RunFolder& folder);

}  // namespace plimsoll
