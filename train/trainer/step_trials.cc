// Trials of levers, evaluation, and what is said when nothing fits.
#include "train/trainer/trainer_trials.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "train/checkpointing/random_state.h"
#include "train/common/evaluating.h"
#include "train/common/wall_clock.h"
#include "train/gradients/recovery.h"
#include "train/optimizers/adam8bit.h"
#include "train/optimizers/host_optimizer.h"
#include "train/optimizers/optimizer_step.h"
#include "train/parallel/ranks/agreement.h"

namespace plimsoll::train {
namespace {

/// Without a limit for as long as it lives.
class Unlimited {
 public:
  explicit Unlimited(c10::Device device) : memory_(MemoryOf(device)), limit_(memory_.limit()) {
    memory_.SetLimit(std::nullopt);
  }
  ~Unlimited() { memory_.SetLimit(limit_); }
  Unlimited(const Unlimited&) = delete;
  Unlimited& operator=(const Unlimited&) = delete;

 private:
  DeviceMemory& memory_;
  std::optional<Bytes> limit_;
};

}  // namespace

template <class Function>
bool Trainer::Trials::Undone(const Levers& levers, Function function) {
  Trainer& trainer = trainer_;
  const Levers before = trainer.levers_;
  const PeakScope peak(trainer.budget_);
  std::shared_ptr<void> trial = trainer.team_->BeginTrial();
  std::optional<StepUndo> undo;
  bool fits = true;
  const auto end = [&] {
    if (undo) undo->Undo();
    trainer.scaler_.Forget();
    trainer.metrics_.Clear();
    trainer.Use(before);
    trainer.trying_ = false;
    trial.reset();
  };
  try {
    trainer.trying_ = true;
    trainer.Use(levers);
    undo.emplace(*trainer.model_, trainer.options_.device,
                 [&trainer] { trainer.team_->ClearGradients(); });
    Bytes state = 0;
    for (torch::optim::Optimizer* const optimizer : trainer.stepped_)
      state += StateToCome(*optimizer);
    at::Tensor room =
        at::empty({state}, at::TensorOptions(at::kByte).device(trainer.options_.device));
    function(room);
  } catch (const std::exception& error) {
    end();
    if (!IsOutOfMemory(error)) throw;
    most_ = std::max(most_, peak.figures().peak_allocated);
    fits = false;
  } catch (...) {
    end();
    throw;
  }
  if (fits) end();
  trainer.budget_.ReleaseCached();
  return fits;
}

bool Trainer::Trials::Fits(const Levers& levers) {
  const Batch rows = batch_.Rows(0, std::min(levers.micro_batch, batch_.size()));
  return Undone(levers, [&](at::Tensor& room) {
    // The number is waited for, so that the next piece is timed alone.
    trainer_.Gradients(rows).item<double>();
    const bool whole = rows.size() == batch_.size();
    const bool as_it_is = whole && levers == Levers{.micro_batch = levers.micro_batch};
    if (!as_it_is) {
      // A later piece finds the gradients of those before it, the whole batch finds none.
      if (whole) trainer_.team_->ClearGradients();
      const double begin = Seconds();
      trainer_.Gradients(rows).item<double>();
      const auto pieces = static_cast<double>(batch_.size()) / static_cast<double>(rows.size());
      expected_seconds_ = pieces * (Seconds() - begin) + HostSeconds(trainer_.stepped_);
    }
    room = at::Tensor();
    TryStepMemory(trainer_.stepped_);
  });
}

Bytes Trainer::Trials::Room() const {
  return trainer_.options_.budget.value_or(std::max<Bytes>(most_, 1));
}

std::optional<std::pair<StepRecord, StepRecord>> Trainer::Trials::Record(const Levers& levers) {
  const Batch rows = batch_.Rows(0, std::min(levers.micro_batch, batch_.size()));
  std::pair<StepRecord, StepRecord> records;
  const bool fits = Undone(levers, [&](at::Tensor&) {
    for (StepRecord* const record : {&records.first, &records.second}) {
      StepRecorder recorder(trainer_.budget_, trainer_.blocks_);
      trainer_.Gradients(rows);
      *record = recorder.Finish();
    }
  });
  return fits ? std::optional(std::move(records)) : std::nullopt;
}

double Trainer::LossOf(const Batch& rows) {
  return team_->Evaluate(
      [this](const Batch& some) { return Loss(some); }, rows,
      {.rows = rows.size(), .reduction = options_.reduction, .weight = options_.weight});
}

void Trainer::CheckLossSplits(const Batch& batch) {
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

bool Trainer::LossSplits(const Batch& rows) {
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

double Trainer::Evaluate(const Batch& batch) {
  Ranks& ranks = team_->ranks();
  batch.CheckRows(/*least=*/ranks.alone() ? 1 : 0);
  const Evaluating evaluating(*model_);
  std::optional<Ema::Swapped> averages;
  if (ema_) averages.emplace(ema_->SwapIn());
  const bool whole = options_.reduction == Reduction::kWholeBatch;
  const std::int64_t usual = team_->UsualRows(batch.size());
  Pieces pieces{.rows = std::max<std::int64_t>(usual, 1),
                .reduction = options_.reduction,
                .weight = options_.weight};
  ranks.Doing("evaluation");
  while (true) {
    double loss = 0;
    std::exception_ptr own;
    const std::vector<int> full = ranks.Try([&] {
      metrics_.Clear();
      try {
        loss = team_->Evaluate([this](const Batch& rows) { return Loss(rows); }, batch, pieces);
      } catch (const std::exception& error) {
        if (IsOutOfMemory(error)) own = std::current_exception();
        throw;
      }
    });
    if (full.empty()) return loss;
    DoTogether(ranks, [&] {
      if (!own && !team_->in_step()) return;
      const bool graph_dropped = graph_.RanOut();
      budget_.ReleaseCached();
      if (graph_dropped) return;
      if (own && (pieces.rows == 1 || whole)) std::rethrow_exception(own);
      pieces.rows = (pieces.rows + 1) / 2;
    });
  }
}

double Trainer::LossInPieces(const Batch& batch, std::int64_t size) {
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

Bytes Trainer::LeastBudget(const Batch& batch) {
  batch.CheckRows();
  TORCH_CHECK(team_->tries_alone(),
              "no rank of a pipeline can try by itself how much memory a step needs");
  const Unlimited unlimited(options_.device);
  if (!form_) return LeastWithThisForm(batch);
  const OptimizerForm before = *form_;
  std::vector<Bytes> needs;
  try {
    for (const OptimizerForm form : FormsToTry()) {
      UseForm(form);
      needs.push_back(LeastWithThisForm(batch));
    }
  } catch (...) {
    UseForm(before);
    throw;
  }
  UseForm(before);
  return std::ranges::min(needs);
}

Bytes Trainer::LeastWithThisForm(const Batch& batch) {
  Trials trials(*this, batch);
  Levers least = planner_.Least(LimitsFor(batch.size()), trials);
  Bytes lowest = 0;
  for (const bool offload : {false, true}) {
    if (options_.offload.value_or(offload) != offload) continue;
    least.offload = offload;
    budget_.ReleaseCached();
    const PeakScope peak(budget_);
    TORCH_CHECK_WITH(OutOfMemoryError, trials.Fits(least),
                     "the device itself has too little memory");
    const Bytes held = peak.figures().peak_reserved;
    if (lowest == 0 || held < lowest) lowest = held;
  }
  return lowest;
}

FixedMemory Trainer::Fixed() const {
  FixedMemory fixed;
  if (team_) {
    fixed = {.parameters = team_->parameter_bytes(), .gradients = team_->gradient_bytes()};
  } else {
    // Before it is known what this rank keeps.
    for (const at::Tensor& one : model_->parameters()) {
      fixed.parameters += static_cast<Bytes>(one.nbytes());
      if (one.requires_grad()) fixed.gradients += static_cast<Bytes>(one.nbytes());
    }
  }
  for (torch::optim::Optimizer* const optimizer : stepped_) {
    fixed.optimizer_state += StateToCome(*optimizer);
  }
  return fixed;
}

DoesNotFit Trainer::Shortage(const Batch& batch) {
  const LeverLimits limits = LimitsFor(batch.size());
  const Bytes most = options_.budget.value_or(budget_.figures().peak_reserved);
  const bool small_already = std::ranges::any_of(stepped_, [](torch::optim::Optimizer* one) {
    return dynamic_cast<AdamW8bit*>(one) != nullptr || dynamic_cast<Adam8bit*>(one) != nullptr ||
           dynamic_cast<HostAdamW*>(one) != nullptr || dynamic_cast<HostAdam*>(one) != nullptr;
  });
  const FixedMemory fixed = Fixed();
  // A state that may go to the host need not be there.
  const bool state_may_go = forms_.allowed.size() > 1;
  Bytes least = budget_.figures().allocated + fixed.gradients;
  if (!state_may_go) least += fixed.optimizer_state;
  if (state_may_go && !optimizers_[0]->state().empty()) least = 0;
  const Bytes expected = planner_.LeastPeak(limits).value_or(0);
  return Explain({.need = std::max({most, least, expected}),
                  .need_is_least = expected < std::max(most, least),
                  .budget = options_.budget,
                  .fixed = fixed,
                  .rows = MicroBatches(limits).back(),
                  .may_split = limits.may_split,
                  .whole_batch = options_.reduction == Reduction::kWholeBatch,
                  .blocks = blocks_.size(),
                  .state_could_shrink = !small_already && forms_.allowed.size() < 2,
                  .levers_set = options_.micro_batch || options_.checkpoint || options_.offload ||
                                options_.chunked_loss});
}

}  // namespace plimsoll::train
