// Starts a program several times on this machine, as the ranks of one training.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <string>
#include <vector>

namespace plimsoll::train {

/// A store asks a name server who it is that connects, each time, and answers nobody until it
/// knows: many seconds where the name server is slow. On one machine the names say nothing; from
/// now on this process and its children wait a second at most, unless RES_OPTIONS says otherwise.
void DoNotWaitForNames();

/// At a port that was free.
c10::intrusive_ptr<c10d::TCPStore> StoreOnThisMachine();

/// Starts `arguments` (the program first) `ranks` times, with the variables that
/// LaunchFromEnvironment reads, and waits for all. This process keeps the store. SIGINT and SIGTERM
/// are passed on. When a rank has failed, the others are told, which those that have not met yet
/// wait for; they have until their own time limit to say so. Those that are still there after it,
/// and `grace_seconds`, are killed.
/// Returns 0, or the exit status of the first rank that failed (128 + signal where it was killed),
/// and says which that was on stderr where it was killed.
int RunOnThisMachine(int ranks, const std::vector<std::string>& arguments, int grace_seconds);

}  // namespace plimsoll::train
