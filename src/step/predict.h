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
#include "hardware/cluster.h"
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
  /// For the time of collectives.
  Cluster cluster = {};
};

/// A figure, and between which it lies.
struct Range {
  Bytes low = 0;
  Bytes best = 0;
  Bytes high = 0;
};

/// The peaks of a run, as far as they are known.
struct Needs {
  Range allocated;
  Range reserved;
  /// With the CUDA context and what else lies outside of PyTorch: what nvidia-smi would show.
  Range device;
};

/// The figures that it inherits are what it takes within the card's memory and the limit, where it
/// fits: those that `fits` and `surely_fits` were decided by. Where it does not fit, they are
/// `unlimited`.
struct Prediction : Needs {
  std::string file;
  std::string model;
  std::string precision;
  std::string settings;
  Gpu gpu;
  TorchVersion torch;
  std::int64_t batch = 0;
  /// Batches in each step of the optimizer.
  int passes = 1;
  /// The data decide sizes: batches that were not seen may be larger.
  bool sizes_change = false;
  int steps = 0;

  /// What it would take if nothing limited it. Within a limit PyTorch gives back what it has
  /// cached, and workspaces are refused; so this may exceed the room although it fits.
  Needs unlimited;
  /// It asks for more than there are addresses for (a PiB): the figures end where it did.
  bool beyond_count = false;
  std::optional<Bytes> limit = {};
  /// What the allocator may ask for, and what it can hold at most: with expandable segments up to a
  /// page more.
  Bytes room = 0;
  Bytes most = 0;
  bool fits = true;
  /// Whether it fits even if everything takes as much as it may.
  bool surely_fits = true;
  /// Workspaces of convolutions that do not fit any more, over all steps: cuDNN then takes a slower
  /// way without.
  std::int64_t workspaces_refused = 0;
  /// Convolutions (by direction) that are slow in each later step, since they were refused once.
  std::int64_t refused_in_a_step = 0;
  /// How long a step takes, with what is refused; and if nothing were.
  double step_us = 0;
  double unlimited_step_us = 0;
  /// How long the GPU is busy in it; less than the step where it waits for the host.
  double gpu_busy_us = 0;
  /// How long it has nothing to do but to wait for what ranks do together.
  double waited_us = 0;

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
Result<Prediction> Predict(const Step& step, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll
