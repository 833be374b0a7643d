// Several ranks in processes of their own, for tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/common/nightly_for_tests.h"
#include "train/parallel/ranks/launch.h"

namespace plimsoll::train {

/// What a rank found out, by name.
using Findings = std::map<std::string, at::Tensor>;
/// Runs in each rank. The words are those given to RunRanks, a line each at most.
using RankTask = std::function<Findings(const Launch& launch, const std::vector<std::string>&)>;

/// Makes a task known by its name; a variable outside of functions.
struct RankTaskNamed {
  RankTaskNamed(const char* name, RankTask task);
};

/// Limits of ranks in tests, which a busy machine does not reach. For ranks that go on to the end:
/// against hanging alone.
inline constexpr std::chrono::minutes kAmpleLimit{10};
/// For ranks that are to notice one that stands still: a hundred times what they wait otherwise, by
/// night under a sanitizer too.
inline const std::chrono::seconds kFaultLimit{Nightly(60, 10)};
/// After it whatever a rank is said to be doing is in the store.
inline constexpr std::chrono::seconds kUntilSaid{1};

struct RankOutcome {
  Findings findings;
  /// What the task threw; empty if it returned.
  std::string error;
  /// Ended by this signal, or 0.
  int signal = 0;
  /// Was still running at the end of the time.
  bool late = false;

  bool good() const { return error.empty() && signal == 0 && !late; }
};

struct RankProcesses {
  std::string task;
  int size = 2;
  std::vector<std::string> words;
  /// The launcher keeps the store, as torchrun does; else rank 0.
  bool store_is_kept = true;
  /// Killed as soon as all others have ended; -1: none.
  int not_awaited = -1;
  /// After it every process is killed: against hanging alone.
  std::chrono::milliseconds time_limit = std::chrono::minutes(20);
};
std::vector<RankOutcome> RunRanks(const RankProcesses& processes);

/// Calls them all, in threads, so many at once: for cases that wait most of the time. Those that
/// wait longest come first.
void SeveralAtOnce(const std::vector<std::function<void()>>& cases, int at_once);

}  // namespace plimsoll::train
