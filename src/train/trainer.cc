#include "train/trainer.h"

#include <torch/cuda.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <chrono>

#include "train/checkpointing/autocast.h"
#include "train/checkpointing/saved_tensors.h"
#include "train/optimizers/optimizer_step.h"
#include "train/recovery.h"

namespace plimsoll::train {
namespace {

constexpr std::int64_t kFirstPatience = 32;

double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

int BlocksOf(const torch::nn::Module& model) {
  int blocks = 0;
  for (const auto& module : model.modules()) {
    if (const auto* part = dynamic_cast<const Checkpointable*>(module.get())) {
      blocks = std::max(blocks, part->checkpoint_blocks());
    }
  }
  return blocks;
}

std::optional<AutocastState> AutocastFor(Precision precision, c10::Device device) {
  if (precision == Precision::kFloat32) return std::nullopt;
  return AutocastState{.device = device.type(),
                       .enabled = true,
                       .dtype = precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16};
}

/// Room that the optimizer's state will take, kept while levers are tried. An optimizer in two
/// phases takes it itself; of any other all that is known is that Adam's is twice the parameters.
at::Tensor RoomForState(torch::optim::Optimizer& optimizer, c10::Device device) {
  if (dynamic_cast<TwoPhaseOptimizer*>(&optimizer) != nullptr || !optimizer.state().empty())
    return {};
  Bytes bytes = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params())
      bytes += static_cast<Bytes>(parameter.nbytes());
  }
  return at::empty({2 * bytes}, at::TensorOptions(at::kByte).device(device));
}

}  // namespace

Precision ParsePrecision(std::string_view text) {
  if (text == "fp32") return Precision::kFloat32;
  if (text == "bf16") return Precision::kBfloat16;
  TORCH_CHECK(text == "fp16", "precision '", text, "' is not one of fp32, bf16, fp16");
  return Precision::kFloat16;
}

std::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kBfloat16:
      return "bf16";
    case Precision::kFloat16:
      return "fp16";
  }
  return {};
}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, LossFunction loss,
                 TrainerOptions options)
    : model_(std::move(model)),
      optimizer_(std::move(optimizer)),
      loss_(std::move(loss)),
      options_(std::move(options)),
      budget_(options_.device, options_.budget),
      scaler_(GradScalerOptions{.enabled = options_.precision == Precision::kFloat16}),
      offload_(options_.device, model_->parameters(), options_.offload_options) {
  for (const at::Tensor& parameter : model_->parameters()) {
    TORCH_CHECK(parameter.device().type() == options_.device.type(), "a parameter lies on ",
                parameter.device(), ", and the trainer's device is ", options_.device,
                "; move the model there first");
  }
  const Bytes held = budget_.figures().allocated;
  TORCH_CHECK_WITH(OutOfMemoryError, held <= options_.budget.value_or(held), FormatBytes(held),
                   " are held before training begins, which is more than the budget of ",
                   FormatBytes(options_.budget.value_or(0)));
}

LeverLimits Trainer::LimitsFor(std::int64_t rows) const {
  return {.batch = rows,
          .may_split = options_.split_batch_norm || !MixesSamples(*model_),
          .micro_batch = options_.micro_batch,
          .checkpoint = options_.checkpoint,
          .offload = options_.offload,
          .blocks = BlocksOf(*model_)};
}

void Trainer::Use(const Levers& levers) {
  levers_ = levers;
  for (const auto& module : model_->modules()) {
    if (auto* part = dynamic_cast<Checkpointable*>(module.get())) {
      part->set_checkpoint_policy(levers.checkpoint);
    }
  }
}

at::Tensor Trainer::Gradients(const Batch& batch) {
  Pieces pieces{.rows = std::max<std::int64_t>(levers_.micro_batch, 1),
                .reduction = options_.reduction,
                .weight = options_.weight};
  if (scaler_.enabled()) {
    pieces.scale = [this](const at::Tensor& loss) { return scaler_.Scale(loss); };
  }
  const auto autocast = AutocastFor(options_.precision, options_.device);
  const auto loss = [&](const Batch& rows) {
    std::optional<AutocastScope> precision;
    if (autocast) precision.emplace(*autocast);
    std::optional<SavedTensorScope> saving;
    if (levers_.offload) saving.emplace(offload_.policy(rows.tensors));
    return loss_(rows);
  };
  return AccumulateGradients(loss, batch, pieces);
}

bool Trainer::Optimize() {
  if (options_.clip_norm > 0) {
    if (scaler_.enabled()) scaler_.Unscale(*optimizer_);
    torch::nn::utils::clip_grad_norm_(model_->parameters(), options_.clip_norm);
  }
  if (scaler_.enabled()) return scaler_.Step(*optimizer_);
  StepOrNothing(*optimizer_);
  return true;
}

std::optional<double> Trainer::Try(const Levers& levers, const Batch& batch) {
  Use(levers);
  const Batch rows = batch.Rows(0, std::min(levers.micro_batch, batch.size()));
  std::optional<StepUndo> undo;
  std::optional<double> seconds;
  try {
    undo.emplace(*model_, options_.device);
    const at::Tensor room = RoomForState(*optimizer_, options_.device);
    Gradients(rows);
    if (auto* optimizer = dynamic_cast<TwoPhaseOptimizer*>(optimizer_.get())) optimizer->Prepare();
    // The second time is the one that counts: the state is there, and so are the gradients of an
    // earlier piece if there is one; kernels are loaded.
    if (rows.size() == batch.size()) ClearGradients(*model_);
    Synchronize();
    const double begin = Seconds();
    Gradients(rows);
    Synchronize();
    seconds = (Seconds() - begin) / static_cast<double>(rows.size());
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) {
      if (undo) undo->Undo();
      throw;
    }
  }
  if (undo) undo->Undo();
  if (!seconds) budget_.ReleaseCached();
  return seconds;
}

void Trainer::Choose(const Batch& batch) {
  const LeverLimits limits = LimitsFor(batch.size());
  const auto chosen =
      ChooseLevers(limits, [&](const Levers& levers) { return Try(levers, batch); });
  TORCH_CHECK_WITH(
      OutOfMemoryError, chosen.has_value(), "not even ",
      limits.may_split ? "one sample at a time" : "the batch",
      " with everything checkpointed and offloaded fits into ",
      FormatBytes(options_.budget.value_or(0)), ": ", FormatBytes(budget_.figures().allocated),
      " are in use before a step begins",
      limits.may_split ? "" : "; the batch cannot be split because of batch normalization");
  Use(*chosen);
  chosen_for_ = batch.size();
  budget_.ReleaseCached();
}

StepReport Trainer::Step(const Batch& batch) {
  if (batch.size() > chosen_for_) Choose(batch);
  TryUpwardAgain();
  StepReport report{.step = steps_};
  const PeakScope peak(budget_);
  const double begin = Seconds();
  at::Tensor loss;
  while (true) {
    std::optional<StepUndo> undo;
    try {
      undo.emplace(*model_, options_.device);
      loss = Gradients(batch);
      report.skipped = !Optimize();
      break;
    } catch (const std::exception& error) {
      if (undo) undo->Undo();
      scaler_.Forget();
      if (!IsOutOfMemory(error)) throw;
    }
    GiveWay(batch, report.retries++);
  }
  // Nothing from here on can be repeated: the parameters are new.
  if (scaler_.enabled()) scaler_.Update();
  ClearGradients(*model_);
  before_trying_.reset();
  ++steps_;
  ++calm_steps_;
  report.loss = loss.item<double>();
  report.seconds = Seconds() - begin;
  report.memory = peak.figures();
  report.levers = levers_;
  report.scale = scaler_.enabled() ? scaler_.scale() : 1;
  return report;
}

void Trainer::GiveWay(const Batch& batch, int retries) {
  budget_.ReleaseCached();
  calm_steps_ = 0;
  if (before_trying_) {
    Use(*before_trying_);
    before_trying_.reset();
    patience_ *= 2;
    return;
  }
  // The first time it may have been pieces that did not fit together, or another program.
  if (retries == 0) return;
  const auto less = LessThan(levers_, LimitsFor(batch.size()));
  TORCH_CHECK_WITH(OutOfMemoryError, less.has_value(), "the step does not fit with ",
                   levers_.ToString(),
                   ", and there is nothing left to give way with; nothing was changed");
  Use(*less);
  patience_ = std::max(patience_, kFirstPatience);
}

void Trainer::TryUpwardAgain() {
  if (patience_ == 0 || calm_steps_ < patience_ || levers_.micro_batch >= chosen_for_) return;
  calm_steps_ = 0;
  before_trying_ = levers_;
  Levers more = levers_;
  more.micro_batch = std::min(2 * levers_.micro_batch, chosen_for_);
  Use(more);
}

void Trainer::Synchronize() const {
  if (options_.device.is_cuda()) torch::cuda::synchronize(options_.device.index());
}

}  // namespace plimsoll::train
