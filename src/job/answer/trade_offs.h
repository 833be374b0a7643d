// What else could be trained with: every precision, many batch sizes, two settings of the
// allocator, each predicted; and which of them nothing else beats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/answer/rank_set.h"

namespace plimsoll {

/// One trial among others.
struct TradeOff {
  std::string precision;
  std::int64_t batch = 0;
  /// As FormatSettings writes them: "" for the defaults.
  std::string settings;
  TrialResult trial;
  /// It fits for good: it does not leak until it runs out, and its host has room.
  bool fits = false;
  /// It fits, and nothing else that fits takes less memory without taking longer for a sample, or
  /// less time without more memory.
  bool on_frontier = false;
  /// What the options name.
  bool chosen = false;

  double MicrosecondsPerSample() const { return trial.step_us / static_cast<double>(batch); }
};

struct TradeOffTable {
  std::vector<TradeOff> points;
  /// Of a long step not all can be tried: so many were not.
  std::size_t left_out = 0;
};

/// How many of all are done. Called from several threads, never from two at once.
using TradeOffProgress = std::function<void(std::size_t done, std::size_t all)>;

/// By precision as captured, then by settings (those given first), then by batch. A precision has
/// at most ten batches: powers of two up to the largest that fits (of a long step, fewer), one that
/// does not (but none beyond 2^24), and the chosen one; that alone where no other is known.
Result<TradeOffTable> TradeOffs(const JobForms& job, const Gpu& gpu, const PredictOptions& chosen,
                                const TradeOffProgress& progress = {});

}  // namespace plimsoll
