// Will it fit? What a trial says, and where the memory is at its peak.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/account.h"
#include "answer/holder.h"
#include "base/result.h"
#include "job/answer/evaluation_changes.h"
#include "job/answer/growth.h"
#include "job/answer/host_needs.h"
#include "job/answer/rank_set.h"
#include "job/answer/served_cache.h"
#include "job/answer/size_changes.h"
#include "job/answer/unquantized.h"
#include "job/trial/trial.h"

namespace plimsoll {

/// What one stage of the job's life takes at most, of all that is seen of it.
struct StageNeeds {
  /// kBuild for what comes before the first step, kStep for all steps.
  Stage stage = Stage::kStep;
  /// It comes after a checkpoint was loaded, of which something may be kept.
  bool after_load = false;
  /// A step with the heaviest batch of the data.
  bool heaviest = false;
  Bytes allocated = 0;
  Bytes reserved = 0;
  /// With what lies outside PyTorch.
  Bytes device = 0;
  /// Resident memory of the process on the host, where it is known.
  std::optional<Bytes> host = {};
  /// Of it, pinned.
  std::optional<Bytes> pinned = {};
  /// The line at which allocated memory peaks.
  std::string where;
  /// The parts of the job that it is made of (PartPeaks::IndexOf).
  std::vector<std::size_t> parts = {};
};

struct Prediction {
  std::string file;
  std::string model;
  std::string precision;
  std::string settings;
  Gpu gpu;
  TorchVersion torch;
  std::int64_t batch = 0;
  /// Of a job over a length too: what the user calls it, and which it is.
  std::string length_name = {};
  std::optional<std::int64_t> length = {};
  /// Batches in each step of the optimizer.
  int passes = 1;
  /// The data decide sizes: batches that were not seen may be larger.
  bool sizes_change = false;
  /// The line beyond which nothing was seen; empty where that is not so.
  std::string lost_at = {};
  /// Parts of the job that may change what it needs.
  std::vector<NotFollowed> not_followed = {};
  int steps = 0;
  /// Else it evaluates or generates, and its stages are all that it does.
  bool trains = true;
  std::optional<ServedCache> cache = {};
  /// Large weights that are whole beside quantized ones.
  std::optional<Unquantized> unquantized = {};
  /// Of a peak in a generation.
  std::optional<TokenNumber> peak_token = {};

  std::optional<Bytes> limit = {};
  TrialResult trial;
  /// How long a step would take if nothing were refused.
  double unlimited_step_us = 0;
  /// Where allocated memory peaks.
  Moment peak;
  std::string peak_op;
  std::string peak_where;
  std::string peak_module;
  /// Adds up to the best figure for the device.
  std::vector<AccountLine> account;
  std::vector<Holder> holders;
  /// In the order in which they come first. Only where more than steps was captured.
  std::vector<StageNeeds> stages = {};
  /// Where ranks differ, in their order.
  std::vector<RankNeeds> ranks = {};
  /// The stage in which it runs out, where it does, and the line.
  std::optional<Stage> fails_in = {};
  std::string fails_at = {};
  /// That is after the captured steps.
  bool fails_later = false;
  bool fails_with_heaviest = false;
  /// Whether the heaviest batch of its data is counted.
  Heaviest heaviest = Heaviest::kNotOne;
  /// What would make an evaluation that needs more than training take less.
  std::vector<EvaluationChange> evaluation = {};
  /// Of a job as it stands: the batches of so many steps are its own, and what would make their
  /// changing sizes leave less behind.
  std::size_t own_batches = 0;
  std::vector<SizeChange> size_changes = {};
  /// What the job keeps from step to step.
  std::optional<Growth> growth = {};
  std::optional<HostNeeds> host = {};
  Stage host_stage = Stage::kBuild;
  /// What the machine has for it and its like.
  std::optional<Bytes> host_room = {};
  /// By captured or repeated step: the peaks up to its end.
  std::vector<Bytes> reserved_after_step;

  std::vector<std::string> assumptions;

  /// Whether it fits, and goes on doing so.
  bool Runs() const { return trial.fits && !(growth && growth->EndsTheJob()) && FitsHost(); }
  /// What others may have of the card so that it surely fits in every stage that was seen.
  Bytes LeftForOthers() const {
    return trial.fits ? std::max<Bytes>(0, gpu.memory - trial.needs.device.high) : 0;
  }
  bool FitsHost() const { return !host || !host_room || host->of_machine() <= *host_room; }
};

/// What a part of the job is, by its number (PartPeaks::IndexOf).
Stage StageOfPart(const Trial& trial, std::size_t part);

/// All that is alive at the peak that is shown, of which a prediction has the largest.
std::vector<Holder> HoldersAtPeak(const Trial& trial);

/// Parts of the job that were not followed: lines of its script, and batches that its data make.
std::vector<NotFollowed> NotFollowedBy(const Setting& setting);

Prediction Predict(const Trial& trial);
Result<Prediction> Predict(const Job& job, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll
