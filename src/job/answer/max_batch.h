// The largest batch that fits, and the fastest one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job/answer/rank_set.h"

namespace plimsoll {

/// What is asked for at most.
inline constexpr std::int64_t kLargestBatch = std::int64_t{1} << 24;
/// A batch that may not fit is called the fastest only if it is this many times as fast as those
/// that surely do: less is within what the times are wrong by.
inline constexpr double kClearlyFaster = 1.02;

/// What a trial says of a batch: how fast it trains, roughly.
struct BatchSpeed {
  /// 0: there is none.
  std::int64_t batch = 0;
  /// In each step of the optimizer.
  std::int64_t samples = 0;
  /// 0 where no time is known: of two recorded runs.
  double step_us = 0;
  /// Workspaces of convolutions that are refused, over all steps.
  std::int64_t refused = 0;

  double SamplesPerSecond() const { return step_us > 0 ? 1e6 * double(samples) / step_us : 0; }
};

struct MaxBatch {
  /// It fits even if everything takes as much as it may, and so do all smaller ones that were
  /// tried: the one to train with.
  BatchSpeed sure;
  /// The largest that may fit, of those that were tried.
  BatchSpeed most;
  /// How far apart the batches up to `sure` are, at most, that were tried; 1: each was.
  std::int64_t tried_every = 1;
  /// That with the most samples a second, of those that may fit: one that surely fits unless
  /// another is clearly faster. Refused workspaces can make the largest batches slow.
  BatchSpeed fastest;
  /// Where the step is so long that the search ended before all that could be larger was tried:
  /// none of these batches and above fits, of those that were. 0: it went to its end.
  std::int64_t untried_below = 0;
  /// The largest whose first steps may fit, of a job that leaks or that its host has no room for;
  /// `sure` and `most` are those that last. 0: there is no such difference.
  std::int64_t first_steps = 0;

  /// The batch that a user who asks for the largest is answered with.
  std::int64_t Answer() const { return sure.batch > 0 ? sure.batch : most.batch; }
  /// The batch to show: where none lasts, one whose first steps fit.
  std::int64_t Shown() const { return Answer() > 0 ? Answer() : first_steps; }
};

// The batch of the ranks' settings is ignored. A batch fits if it fits on every rank.

MaxBatch FindMaxBatch(const RankSet& ranks);
/// `most` alone, which takes less time.
std::int64_t LargestThatMayFit(const RankSet& ranks);
/// Of the powers of two; 0 where none does.
std::int64_t LargestPowerThatSurelyFits(const RankSet& ranks);

/// What must hold of every answer and does not, each as a sentence.
std::vector<std::string> BrokenInvariants(const MaxBatch& max_batch);

}  // namespace plimsoll
