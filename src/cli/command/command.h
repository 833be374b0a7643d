// One subcommand: its flags and what it does with them. run.cc only dispatches.
#pragma once

#include <functional>

#include "cli/command/flags.h"

namespace plimsoll {

/// Exit codes: 0 fine, 1 the answer is no, 2 unusable input or flags, 3 the answer is unknown.
inline constexpr int kFine = 0;
inline constexpr int kNo = 1;
inline constexpr int kUnusable = 2;
inline constexpr int kUnknownAnswer = 3;

/// Declares the flags and returns what to run once they are parsed.
using Command = std::function<int()>;

Command AddExplain(Flags& flags);
Command AddDiff(Flags& flags);
Command AddBisect(Flags& flags);
Command AddReplay(Flags& flags);
Command AddTune(Flags& flags);
Command AddPack(Flags& flags);
Command AddGpus(Flags& flags);
Command AddReport(Flags& flags);
Command AddPredict(Flags& flags);
Command AddData(Flags& flags);
Command AddPlan(Flags& flags);
Command AddRunJob(Flags& flags);
Command AddHook(Flags& flags);
Command AddWatch(Flags& flags);
Command AddMcp(Flags& flags);

}  // namespace plimsoll
