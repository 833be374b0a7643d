// Will it fit? Lowers a step, runs it through the allocator and looks at the peak.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/settings.h"
#include "answer/account.h"
#include "answer/holder.h"
#include "base/result.h"
#include "hardware/gpu.h"
#include "step/file/step.h"
#include "step/lowering/lower.h"

namespace plimsoll {

struct PredictOptions {
  std::int64_t batch = 1;
  int steps = 5;
  /// One of the step's variants; the first unless given.
  std::optional<std::string> precision = {};
  /// A PYTORCH_CUDA_ALLOC_CONF string.
  std::string conf = {};
  /// The release that will run it; that of the capture unless given.
  std::optional<TorchVersion> torch = {};
  /// What was measured on the GPU; null for the rules alone.
  const Calibration* calibration = nullptr;
  /// The per-process memory fraction, in bytes.
  std::optional<Bytes> limit = {};
};

/// A figure, and between which it lies.
struct Range {
  Bytes low = 0;
  Bytes best = 0;
  Bytes high = 0;
};

struct Prediction {
  std::string file;
  std::string model;
  std::string precision;
  std::string settings;
  Gpu gpu;
  TorchVersion torch;
  std::int64_t batch = 0;
  int steps = 0;

  Range allocated;
  Range reserved;
  /// With the CUDA context and what else lies outside of PyTorch: what nvidia-smi would show.
  Range device;
  std::optional<Bytes> limit = {};
  /// What the allocator can get at most.
  Bytes room = 0;
  bool fits = true;
  /// Whether it fits even if everything takes as much as it may.
  bool surely_fits = true;
  /// Workspaces of convolutions that do not fit any more: cuDNN then works more slowly.
  std::int64_t workspaces_refused = 0;
  /// How long a step takes, roughly.
  double step_us = 0;

  /// Where allocated memory peaks.
  Moment peak;
  std::string peak_op;
  std::string peak_where;
  std::string peak_module;
  /// Adds up to the best figure for the device.
  std::vector<AccountLine> account;
  std::vector<Holder> holders;
  /// By captured or repeated step: the peaks up to its end.
  std::vector<Bytes> reserved_after_step;

  std::vector<std::string> assumptions;
};

/// The variant that the options name.
Result<const Variant*> ChooseVariant(const Step& step, const PredictOptions& options);
TorchVersion TorchFor(const Step& step, const PredictOptions& options);
/// How the allocator will be set. Settings that there is no model of are refused.
Result<AllocatorRules> AllocatorRulesFor(const Step& step, const PredictOptions& options);
/// So large that nothing runs out of addresses, to see how much a job would take.
inline constexpr DeviceLimits kUnlimitedDevice{.total = Bytes{1} << 50};

Result<Prediction> Predict(const Step& step, const Gpu& gpu, const PredictOptions& options);

struct MaxBatch {
  /// 0: not even a batch of 1 fits.
  std::int64_t batch = 0;
  /// The largest that fits even if everything takes as much as it may.
  std::int64_t safe_batch = 0;
};

/// By bisection. `options.batch` is ignored.
Result<MaxBatch> FindMaxBatch(const Step& step, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll
