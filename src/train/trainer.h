// Trains a model within a memory budget: chooses how, does it, and gives way when memory runs out.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "train/budget/budget.h"
#include "train/checkpointing/offload.h"
#include "train/levers.h"
#include "train/micro_batch.h"
#include "train/optimizers/grad_scaler.h"

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
  Reduction reduction = Reduction::kMean;
  /// What the loss of some rows is about, for losses that are means over tokens. Null: the rows.
  WeightFunction weight;
  /// Gradients are scaled down to this norm. 0: not.
  double clip_norm = 0;
  /// Set what should not be chosen.
  std::optional<std::int64_t> micro_batch;
  std::optional<CheckpointPolicy> checkpoint;
  std::optional<bool> offload;
  OffloadOptions offload_options;
  /// Allows pieces though batch normalization then sees fewer samples at once.
  bool split_batch_norm = false;
};

/// What one step did.
struct StepReport {
  std::int64_t step = 0;
  double loss = 0;
  double seconds = 0;
  MemoryFigures memory;
  Levers levers;
  double scale = 1;
  /// The gradients were not finite, so that the parameters stayed.
  bool skipped = false;
  /// Attempts that ran out of memory.
  int retries = 0;
};

class Trainer {
 public:
  /// The model must be on the device. The loss function is called with rows of a batch, under
  /// autocast where that is asked for.
  Trainer(std::shared_ptr<torch::nn::Module> model,
          std::shared_ptr<torch::optim::Optimizer> optimizer, LossFunction loss,
          TrainerOptions options = {});

  /// One step on the whole batch. The first one, and the first with a larger batch, tries what
  /// fits. Fails only if the least there is does not fit, with nothing changed.
  StepReport Step(const Batch& batch);

  /// The state that makes the next step the same bit for bit: parameters, buffers, optimizer,
  /// scaler, random numbers, levers. `extra` is the caller's, for example where its loader is.
  void Save(const std::filesystem::path& path, const std::string& extra = {}) const;
  /// Returns what was given to Save as extra.
  std::string Load(const std::filesystem::path& path);

  const Levers& levers() const { return levers_; }
  std::int64_t steps() const { return steps_; }
  const Budget& budget() const { return budget_; }

 private:
  LeverLimits LimitsFor(std::int64_t rows) const;
  void Choose(const Batch& batch);
  std::optional<double> Try(const Levers& levers, const Batch& batch);
  void Use(const Levers& levers);
  at::Tensor Gradients(const Batch& batch);
  /// False where the scaler found gradients that are not finite.
  bool Optimize();
  void GiveWay(const Batch& batch, int retries);
  void TryUpwardAgain();
  void Synchronize() const;

  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  LossFunction loss_;
  TrainerOptions options_;
  Budget budget_;
  GradScaler scaler_;
  Offload offload_;

  Levers levers_;
  /// The largest batch that levers were chosen for.
  std::int64_t chosen_for_ = 0;
  std::int64_t steps_ = 0;
  /// After this many steps without running out, a micro-batch that had to be halved is tried at
  /// twice its size again; each time in vain the wait doubles.
  std::int64_t patience_ = 0;
  std::int64_t calm_steps_ = 0;
  /// What to go back to if that was too bold.
  std::optional<Levers> before_trying_;
};

}  // namespace plimsoll::train
