// One subcommand: its flags and what it does with them. main() only dispatches.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace plimsoll {

/// Exit codes: 0 fine, 1 the answer is no, 2 unusable input or flags.
inline constexpr int kFine = 0;
inline constexpr int kNo = 1;
inline constexpr int kUnusable = 2;

/// Registers the flags on `app` and returns what to run once they are parsed.
using Command = std::function<int()>;

Command AddExplain(CLI::App& app);
Command AddDiff(CLI::App& app);
Command AddReplay(CLI::App& app);
Command AddTune(CLI::App& app);
Command AddReport(CLI::App& app);
Command AddPack(CLI::App& app);
Command AddPredict(CLI::App& app);
Command AddGpus(CLI::App& app);

}  // namespace plimsoll
