// The flags of `predict`, and the question that they ask.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command/flags.h"
#include "cli/prices.h"
#include "cli/script_flags.h"
#include "hardware/gpu.h"
#include "job/answer/question.h"
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
  /// An unknown verdict ends with exit code 0.
  bool allow_unknown = false;
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

/// Reads the files that the flags name, and makes one question of all. A model by its configuration
/// whose longest sequence is asked for is captured at several lengths: around this one, where it is
/// known that the answer is near.
Result<Question> ReadQuestion(const PredictFlags& flags,
                              std::optional<std::int64_t> around = std::nullopt);

/// Every card of the catalogue that has room beside other processes, with what is measured on it.
Result<std::vector<Card>> ReadCards(const PredictFlags& flags);

}  // namespace plimsoll
