// The flags of `predict`, and the job that they name: the step, the card, the options.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hardware/gpu.h"
#include "step/calibration.h"
#include "step/file/step.h"
#include "step/predict.h"

namespace plimsoll {

struct PredictFlags {
  std::vector<std::string> files;
  std::vector<std::int64_t> batches;
  std::optional<std::int64_t> batch;
  std::string gpu;
  std::optional<std::string> precision;
  std::string conf;
  std::optional<std::string> torch;
  std::optional<std::string> optimizer;
  std::optional<std::string> calibration;
  std::optional<std::string> limit;
  int steps = 5;
  bool max_batch = false;
  bool ddp = false;
  std::optional<std::string> fsdp;
  bool json = false;
  bool events = false;
  std::string html;
};

void AddPredictFlags(CLI::App& app, PredictFlags& flags);

/// What is to be predicted. Not moved: the options refer to its calibration.
struct PredictJob {
  Step step;
  Gpu gpu;
  std::optional<Calibration> calibration;
  /// Without the batch, unless it is given.
  PredictOptions options;
};

/// Reads the files that the flags name.
Result<std::unique_ptr<PredictJob>> ReadPredictJob(const PredictFlags& flags);

}  // namespace plimsoll
