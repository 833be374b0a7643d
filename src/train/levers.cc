#include "train/levers.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace plimsoll::train {
namespace {

/// Pieces of about this size that are equal as far as they can be: 32 rows by 12 are 11, 11 and 10.
std::int64_t Even(std::int64_t batch, std::int64_t micro_batch) {
  const std::int64_t pieces = (batch + micro_batch - 1) / micro_batch;
  return (batch + pieces - 1) / pieces;
}

std::vector<std::int64_t> MicroBatches(const LeverLimits& limits) {
  if (limits.micro_batch) return {std::min(*limits.micro_batch, limits.batch)};
  if (!limits.may_split) return {limits.batch};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size < limits.batch; size *= 2) {
    const std::int64_t even = Even(limits.batch, size);
    if (sizes.empty() || sizes.back() != even) sizes.push_back(even);
  }
  if (sizes.empty() || sizes.back() != limits.batch) sizes.push_back(limits.batch);
  return sizes;
}

bool SameRung(const Levers& a, const Levers& b) {
  return a.offload == b.offload && a.checkpoint.ToString() == b.checkpoint.ToString();
}

CheckpointPolicy EverySecond(int blocks) {
  std::set<int> chosen;
  for (int block = 0; block < blocks; block += 2) chosen.insert(block);
  return CheckpointPolicy::Plan(std::move(chosen));
}

}  // namespace

std::string Levers::ToString() const {
  return c10::str("micro-batch ", micro_batch, ", checkpoint ", checkpoint.ToString(),
                  offload ? ", offload" : "");
}

std::vector<Levers> Ladder(const LeverLimits& limits) {
  std::vector<CheckpointPolicy> policies;
  if (limits.checkpoint) {
    policies = {*limits.checkpoint};
  } else {
    policies = {CheckpointPolicy()};
    if (limits.blocks > 3) policies.push_back(EverySecond(limits.blocks));
    if (limits.blocks > 0) policies.push_back(CheckpointPolicy::All());
  }
  std::vector<Levers> rungs;
  for (const CheckpointPolicy& policy : policies) {
    rungs.push_back({.checkpoint = policy, .offload = limits.offload.value_or(false)});
  }
  // Last, and with as much checkpointed as may be: what is then left to move is little.
  if (!limits.offload) rungs.push_back({.checkpoint = policies.back(), .offload = true});
  return rungs;
}

std::optional<Levers> ChooseLevers(const LeverLimits& limits, const LeverTrial& trial) {
  const std::vector<std::int64_t> sizes = MicroBatches(limits);
  std::optional<Levers> best;
  double best_seconds = 0;
  for (Levers levers : Ladder(limits)) {
    const auto attempt = [&](std::int64_t size) {
      levers.micro_batch = size;
      const auto seconds = trial(levers);
      if (seconds && (!best || *seconds < best_seconds)) {
        best = levers;
        best_seconds = *seconds;
      }
      return seconds.has_value();
    };
    // The largest fits on most machines; and then no further rung can be better.
    if (attempt(sizes.back())) break;
    for (const std::int64_t size : sizes) {
      if (size == sizes.back() || !attempt(size)) break;
    }
  }
  return best;
}

std::optional<Levers> LessThan(const Levers& levers, const LeverLimits& limits) {
  const bool may_halve = limits.may_split && !limits.micro_batch && levers.micro_batch > 1;
  if (may_halve) {
    Levers less = levers;
    less.micro_batch = (levers.micro_batch + 1) / 2;
    return less;
  }
  const std::vector<Levers> rungs = Ladder(limits);
  const auto here = std::find_if(rungs.begin(), rungs.end(),
                                 [&](const Levers& rung) { return SameRung(rung, levers); });
  if (here == rungs.end() || here + 1 == rungs.end()) return std::nullopt;
  Levers less = *(here + 1);
  less.micro_batch = levers.micro_batch;
  return less;
}

}  // namespace plimsoll::train
