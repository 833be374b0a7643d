#include "train/trainer/step_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "train/checkpointing/autocast.h"
#include "train/checkpointing/random_state.h"
#include "train/checkpointing/running_statistics.h"
#include "train/checkpointing/saved_tensors.h"
#include "train/common/evaluating.h"
#include "train/gradients/recovery.h"
#include "train/parallel/ranks/agreement.h"
#include "train/trainer/does_not_fit.h"

namespace plimsoll::train {
namespace {

std::optional<AutocastState> AutocastFor(Precision precision, c10::Device device) {
  if (precision == Precision::kFloat32) return std::nullopt;
  return AutocastState{.device = device.type(),
                       .enabled = true,
                       .dtype = precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16};
}

std::shared_ptr<torch::nn::Module> CheckedModel(std::shared_ptr<torch::nn::Module> model) {
  TORCH_CHECK(model != nullptr, "a trainer needs a model");
  return model;
}

LossFunction CheckedLoss(LossFunction loss, const TrainerOptions& options) {
  if (options.team.pipeline) return nullptr;
  TORCH_CHECK(loss != nullptr, "a trainer needs a loss function");
  return loss;
}

}  // namespace

StepEngine::StepEngine(std::shared_ptr<torch::nn::Module> model,
                       const TrainedOptimizers::List& optimizers, LossFunction loss,
                       const TrainerOptions& options)
    : model_(CheckedModel(std::move(model))),
      options_(options),
      loss_(CheckedLoss(std::move(loss), options)),
      budget_(options.device, options.budget),
      scaler_(GradScalerOptions{.enabled = options.precision == Precision::kFloat16}),
      offload_(options.device, model_->parameters(), options.offload_options),
      statistics_(KeepRunningStatistics(*model_)),
      blocks_(*model_),
      vocabulary_losses_(VocabularyLossesOf(*model_)) {
  CheckOptions(optimizers);
  Ranks alone;
  DoTogether(options_.ranks ? *options_.ranks : alone, [this] { CheckRoom(); });
  team_ = MakeTeam(*model_, options_.ranks.get(), options_.team, optimizers);
  team_->UseForwardScope([this](const Batch& rows) {
    return ForwardScopeOf(rows, /*saves=*/at::GradMode::is_enabled());
  });
}

void StepEngine::CheckOptions(const TrainedOptimizers::List& optimizers) const {
  TORCH_CHECK(!optimizers.empty() && std::ranges::count(optimizers, nullptr) == 0,
              "a trainer needs an optimizer");
  for (const auto& item : model_->named_parameters()) {
    TORCH_CHECK(item.value().device().type() == options_.device.type(), "the parameter '",
                item.key(), "' lies on ", item.value().device(), ", and the trainer's device is ",
                options_.device, "; move the model there first");
  }
  TORCH_CHECK(options_.micro_batch.value_or(1) >= 1, "a micro-batch has at least one row, not ",
              options_.micro_batch.value_or(1));
  TORCH_CHECK(!options_.checkpoint || options_.checkpoint->last() < blocks_.size(), "block ",
              options_.checkpoint->last(), " is to be checkpointed, and the model has ",
              blocks_.size(), " blocks");
  TORCH_CHECK(!options_.chunked_loss.value_or(false) || !vocabulary_losses_.empty(),
              "the loss is to be in chunks, and the model has no VocabularyLoss");
  TORCH_CHECK(options_.clip_norm >= 0 && std::isfinite(options_.clip_norm),
              "gradients cannot be clipped to a norm of ", options_.clip_norm);
  const bool whole = options_.reduction == Reduction::kWholeBatch;
  if (options_.schedule) CheckSchedule(*options_.schedule);
  CheckRanks();
  TORCH_CHECK(!whole || !options_.micro_batch, "a loss over the whole batch has no micro-batches");
}

void StepEngine::CheckRanks() const {
  if (!options_.ranks || options_.ranks->alone()) return;
  TORCH_CHECK(!options_.cuda_graph, "a CUDA graph is for one rank alone");
  TORCH_CHECK(!options_.team.shard || !options_.ema,
              "moving averages need all that is trained, of which each rank keeps only a part");
}

/// Before it is known what this rank keeps.
void StepEngine::CheckRoom() const {
  const Bytes held = budget_.figures().allocated;
  if (held <= options_.budget.value_or(held)) return;
  FixedMemory fixed;
  for (const at::Tensor& one : model_->parameters()) {
    fixed.parameters += static_cast<Bytes>(one.nbytes());
    if (one.requires_grad()) fixed.gradients += static_cast<Bytes>(one.nbytes());
  }
  throw DoesNotFit({.need = held + fixed.gradients,
                    .need_is_least = true,
                    .budget = options_.budget,
                    .fixed = fixed,
                    .cause = FormatBytes(held) + " are held before training begins",
                    .lever = "Free what is not needed, or make the model smaller"});
}

LeverLimits StepEngine::LimitsFor(std::int64_t rows) const {
  const bool whole = options_.reduction == Reduction::kWholeBatch;
  return {
      .batch = rows,
      .may_split = !whole && (options_.split_batch_norm || !MixesSamples(*model_)),
      .least_rows = MixesSamples(*model_) ? 2 : 1,
      .micro_batch = options_.micro_batch,
      .checkpoint = options_.checkpoint,
      .offload = options_.offload,
      .chunked_loss = vocabulary_losses_.empty() ? std::optional(false) : options_.chunked_loss};
}

void StepEngine::Use(const Levers& levers) {
  graph_.Drop();
  levers_ = levers;
  blocks_.Use(levers.checkpoint);
  for (VocabularyLossImpl* const loss : vocabulary_losses_) loss->set_chunked(levers.chunked_loss);
}

std::shared_ptr<void> StepEngine::ForwardScopeOf(const Batch& rows, bool saves) {
  struct Scopes {
    std::optional<SavedTensorScope> saving;
    std::optional<AutocastScope> precision;
  };
  auto scopes = std::make_shared<Scopes>();
  if (saves && levers_.offload) scopes->saving.emplace(offload_.policy(rows.tensors));
  if (const auto state = AutocastFor(options_.precision, options_.device)) {
    scopes->precision.emplace(*state);
  }
  return scopes;
}

at::Tensor StepEngine::Gradients(const Batch& batch) {
  // Levers that ranks agreed on may be those of one with fewer rows.
  const bool whole = team_->in_step() && !LimitsFor(batch.size()).may_split;
  Pieces pieces{.rows = std::max<std::int64_t>(whole ? batch.size() : levers_.micro_batch, 1),
                .reduction = options_.reduction,
                .weight = trying_ ? nullptr : options_.weight};
  if (scaler_.enabled()) {
    // A rank without rows has no loss to scale.
    scaler_.PlaceOn(options_.device);
    pieces.scale = [this](const at::Tensor& loss) { return scaler_.Scale(loss); };
  }
  const RecomputeScope recomputing(statistics_);
  // A piece of a batch that lies on the host is moved when its turn comes, and goes with it.
  const auto loss = [&](const Batch& piece) {
    const Batch rows = piece.On(options_.device);
    const auto scope = ForwardScopeOf(rows, /*saves=*/true);
    return loss_(rows);
  };
  if (options_.cuda_graph && !trying_ && !levers_.offload) {
    // It has all pieces, and copies them to where it reads them.
    const Batch moved = batch.On(options_.device);
    if (const auto sum = graph_.Run(loss, moved, pieces)) return *sum;
  }
  return team_->AddGradients(loss, batch, pieces);
}

double StepEngine::Evaluate(const Batch& batch, const Pieces& pieces) {
  const auto loss = [this](const Batch& piece) {
    const Batch rows = piece.On(options_.device);
    const auto scope = ForwardScopeOf(rows, /*saves=*/false);
    return loss_(rows);
  };
  return team_->Evaluate(loss, batch, pieces);
}

double StepEngine::LossOf(const Batch& rows) {
  return Evaluate(
      rows, {.rows = rows.size(), .reduction = options_.reduction, .weight = options_.weight});
}

void StepEngine::CheckLossSplits(const Batch& batch) {
  const bool whole =
      options_.reduction == Reduction::kWholeBatch || levers_.micro_batch >= batch.size();
  // The loss of layers in a pipeline no rank can compute by itself.
  if (whole || !team_->tries_alone() || checked_that_loss_splits_) return;
  // Four rows will do. But the mean over rows with nothing to learn from is not a number: then
  // others, and last as many as make two pieces.
  constexpr std::int64_t kPlaces = 8;
  const std::int64_t few = std::min<std::int64_t>(batch.size(), 4);
  const std::int64_t apart = std::max(few, batch.size() / kPlaces);
  std::vector<Batch> places;
  for (std::int64_t begin = 0; begin + few <= batch.size(); begin += apart) {
    places.push_back(batch.Rows(begin, begin + few));
  }
  places.push_back(batch.Rows(0, std::min(batch.size(), 2 * levers_.micro_batch)));
  const Evaluating evaluating(*model_);
  // With a part of the parameters it is another loss, and shows the same.
  const auto alone = team_->BeginTrial();
  const RandomState random = RandomState::Of(options_.device);
  const auto end = [&] {
    random.Restore();
    metrics_.Clear();
  };
  try {
    checked_that_loss_splits_ =
        std::ranges::any_of(places, [&](const Batch& rows) { return LossSplits(rows); });
  } catch (const std::exception& error) {
    end();
    if (!IsOutOfMemory(error)) throw;
    return;
  } catch (...) {
    end();
    throw;
  }
  end();
}

bool StepEngine::LossSplits(const Batch& rows) {
  if (options_.weight && !(options_.weight(rows) > 0)) return false;
  const double whole = LossOf(rows);
  if (!std::isfinite(whole)) return false;
  // One that is random in evaluation too cannot be compared, here or elsewhere.
  if (whole != LossOf(rows)) return true;
  const double parts = LossInPieces(rows, (rows.size() + 1) / 2);
  constexpr double kTolerance = 1e-3;
  TORCH_CHECK(
      std::abs(parts - whole) <= kTolerance * std::max(std::abs(whole), 1e-3),
      options_.micro_batch ? "micro_batch asks for pieces" : "the batch does not fit at once",
      ", and the loss cannot be made of pieces: for ", rows.size(), " rows it is ", whole,
      ", and for their halves, put together as the options say, ", parts,
      ". If the loss compares rows with each other, set reduction to kWholeBatch; if it is a "
      "mean over something else than rows, set weight, and if it is a sum, kSum");
  return true;
}

double StepEngine::LossInPieces(const Batch& batch, std::int64_t size) {
  const auto weight = [&](const Batch& rows) {
    return options_.weight ? options_.weight(rows) : static_cast<double>(rows.size());
  };
  const double all = weight(batch);
  double sum = 0;
  for (std::int64_t begin = 0; begin < batch.size(); begin += size) {
    const Batch rows = batch.Rows(begin, std::min(begin + size, batch.size()));
    const double share = options_.reduction == Reduction::kMean ? weight(rows) / all : 1;
    if (share > 0) sum += share * LossOf(rows);
  }
  return sum;
}

}  // namespace plimsoll::train
