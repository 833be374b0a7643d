// The flags of `predict`, and the job that they name: the step, the card, the options.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command/flags.h"
#include "cli/prices.h"
#include "cli/script_flags.h"
#include "hardware/gpu.h"
#include "job/file/job.h"
#include "job/trial/setting.h"
#include "plan/choice.h"

namespace plimsoll {

struct PredictFlags {
  std::vector<std::string> files;
  ScriptFlags script;
  /// Of two snapshots, the smaller first.
  std::optional<std::pair<std::int64_t, std::int64_t>> batches;
  /// Batch and length of each of several snapshots.
  std::vector<Extent> points;
  std::optional<std::int64_t> batch;
  bool max_batch = false;
  bool max_length = false;
  bool max_tokens = false;
  std::optional<Gpu> gpu;
  /// Every card of the catalogue is asked about, and what an hour of some costs, by name.
  bool any_gpu = false;
  Prices prices;
  std::optional<TorchVersion> torch;
  /// The levers that are set.
  Choice choice;
  bool ddp = false;
  std::optional<std::string> calibration;
  std::optional<Bytes> limit;
  std::optional<Bytes> host;
  std::optional<Bytes> beside;
  std::optional<std::int64_t> steps;
  bool share = false;
  std::optional<std::string> engine;
  bool json = false;
  bool events = false;
  std::optional<std::string> html;
  std::optional<std::string> snapshot;

  void AddTo(Flags& flags);
  /// Parts of it, for whatever else predicts: what is changed about the job and its room; and the
  /// machine and the release that it will run on.
  void AddSettingTo(Flags& flags);
  void AddMachineTo(Flags& flags);
  /// What is set by any flag.
  Choice Chosen() const;
  /// The largest batch is to be found: it is asked for, or no other is.
  bool FindsLargest() const { return max_batch || (!batch && !max_length && !GoesToMostTokens()); }
  /// The answer is about the length where a step has most, unless another is asked about.
  bool GoesToMostTokens() const { return max_tokens && !script.length; }
};

/// What is to be predicted.
struct PredictRequest {
  std::shared_ptr<const Job> job;
  Gpu gpu;
  /// Without the batch, unless it is given.
  PredictOptions options;
  /// Of a job over a length too: as it was captured, and what is changed about it.
  std::shared_ptr<const Job> captured = {};
  Choice choice = {};
  /// The job as each stage of a pipeline runs it, where there is one; and how many ranks do.
  std::vector<std::shared_ptr<const Job>> stages = {};
  std::int64_t ranks_of_a_stage = 1;

  /// The job at another length, with all that is chosen.
  Result<Setting> AtLength(std::int64_t length) const;
};

/// Reads the files that the flags name. A model by its configuration whose longest sequence is
/// asked for is captured at several lengths: around this one, where it is known that the answer is
/// near.
Result<PredictRequest> ReadPredictRequest(const PredictFlags& flags,
                                          std::optional<std::int64_t> around = std::nullopt);

}  // namespace plimsoll
