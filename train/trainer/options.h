// What a trainer is told.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "train/checkpointing/checkpoint_policy.h"
#include "train/checkpointing/offload.h"
#include "train/common/not_finite.h"
#include "train/gradients/micro_batch.h"
#include "train/parallel/team.h"
#include "train/schedule/ema.h"
#include "train/schedule/learning_rate.h"

namespace plimsoll::train {

enum class Precision { kFloat32, kBfloat16, kFloat16 };
/// "fp32", "bf16", "fp16".
Precision ParsePrecision(std::string_view text);
std::string_view PrecisionName(Precision precision);

struct TrainerOptions {
  c10::Device device = c10::kCPU;
  /// The most that the device may hold. None: what it has.
  std::optional<Bytes> budget;
  /// bf16 and fp16 run forward under autocast; fp16 with a gradient scaler.
  Precision precision = Precision::kFloat32;
  /// What the loss is over its rows. A loss that compares rows with each other is kWholeBatch and
  /// never split; that it is none is checked before a batch is split for the first time, on rows
  /// whose loss is finite.
  Reduction reduction = Reduction::kMean;
  /// What the loss of some rows is about, for losses that are means over tokens. Null: the rows.
  WeightFunction weight;
  /// Gradients are scaled down to this norm. 0: not.
  double clip_norm = 0;
  NotFinite not_finite = NotFinite::kStop;
  /// Over the rates that the optimizers' groups have when the trainer is made.
  std::optional<ScheduleOptions> schedule;
  /// Moving averages of the model, with which Evaluate works. They count in the budget.
  std::optional<EmaOptions> ema;
  /// Set what should not be chosen.
  std::optional<std::int64_t> micro_batch;
  /// Blocks of the model, numbered through; of a pipeline, layers of the whole.
  std::optional<CheckpointPolicy> checkpoint;
  std::optional<bool> offload;
  /// Of the model's VocabularyLoss.
  std::optional<bool> chunked_loss;
  OffloadOptions offload_options;
  /// Forward and backward are captured as a CUDA graph after the levers were chosen, and replayed:
  /// the same operations, faster where the GPU waits for the host. The loss function then runs on
  /// the host only at the capture, so what it computes there must be the same in every step. A
  /// step goes without, as if this were off, where the device is no GPU, its batch has another
  /// shape than the first had, or a piece whose weight is 0; where levers offload; and where the
  /// step cannot be captured: the loss function reads numbers from the device or adds to metrics(),
  /// or a checkpointed block draws random numbers. The graph keeps the memory of a step (it counts
  /// in the budget) and a copy of the batch; where memory runs out it goes first.
  bool cuda_graph = false;
  /// Allows pieces though batch normalization then sees fewer samples at once.
  bool split_batch_norm = false;
  /// The ranks that train it together: all make a Trainer, with the same options but for the
  /// device, and call its functions together, each with rows of its own. Each row counts the same,
  /// wherever it is; a rank may have none. Null: this process alone.
  std::shared_ptr<Ranks> ranks;
  /// How they do.
  TeamOptions team;
};

}  // namespace plimsoll::train
