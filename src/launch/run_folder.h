// The folder of one run: the hook while the job runs, and what its processes leave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "launch/child.h"

namespace plimsoll {

struct RunFolder {
  std::string path;  // as it is printed
  /// Where the job's Python processes find the hook: in the folder, or, where others could put
  /// another folder in its place or its path cannot stand in PYTHONPATH, among temporary files.
  std::string hook = {};
  /// Why it is not the folder that was asked for; empty where it is.
  std::string instead = {};
};

/// Makes the folder, for its owner alone and with the hook in it: the one that is wanted, else
/// plimsoll-run-1, or the next number that is free. Where the wanted one is not empty, or others
/// have or had a hand in it, it is the first of DIR.2, DIR.3 … that can be made.
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
