// One way to train a captured job: every lever, set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hardware/gpu.h"
#include "step/predict.h"

namespace plimsoll {

enum class OptimizerForm : std::uint8_t { kAsWritten, kFused };

struct Choice {
  /// The captured precision: an index into the step's variants.
  std::size_t variant = 0;
  /// torch.backends.cuda.matmul.allow_tf32
  bool tf32 = false;
  OptimizerForm optimizer = OptimizerForm::kAsWritten;
  /// PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  bool expandable_segments = false;
  /// Samples of one pass, and passes before each step of the optimizer.
  std::int64_t batch = 1;
  int passes = 1;
  /// Blocks that are checkpointed, in the order of the forward.
  std::vector<std::string> checkpointed;

  std::int64_t Samples() const { return batch * passes; }
  bool operator==(const Choice&) const = default;
};

/// What is to be planned for.
struct PlanJob {
  const Step& step;
  Gpu gpu;
  /// The release, the calibration and the limit; the rest is the planner's.
  PredictOptions options;
  /// In each step of the optimizer.
  std::int64_t samples = 1;
  /// Only what gives the same results.
  bool keep_numerics = false;

  /// What the job was captured with.
  Choice AsCaptured() const;
};

}  // namespace plimsoll
