#include "train/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "train/common/evaluating.h"
#include "train/common/wall_clock.h"
#include "train/gradients/recovery.h"
#include "train/optimizers/optimizer_step.h"
#include "train/parallel/ranks/agreement.h"
#include "train/trainer/lever_choice.h"
#include "train/trainer/step_engine.h"
#include "train/trainer/trained_optimizers.h"
#include "train/trainer/trainer_state.h"

namespace plimsoll::train {
namespace {

std::shared_ptr<torch::optim::Optimizer> FirstOf(const OptimizerForms& forms) {
  TORCH_CHECK(forms.make && !forms.allowed.empty(), "a trainer needs an optimizer");
  return forms.make(forms.allowed.front());
}

/// Blocks of a pipeline are numbered by layers of the whole; a trainer's are those of its stage.
TrainerOptions OfThisStage(TrainerOptions options) {
  if (options.team.pipeline && options.checkpoint) {
    options.checkpoint = options.team.pipeline->OwnPart(*options.checkpoint);
  }
  return options;
}

/// "loss", or the first parameter whose gradient is not finite.
std::optional<std::string> NameNotFinite(Team& team, const at::Tensor& loss) {
  auto found = FindNotFinite(team.gradients());
  return found && !std::isfinite(loss.item<double>()) ? "loss" : found;
}

}  // namespace

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, LossFunction loss,
                 TrainerOptions options)
    : Trainer(std::move(model), Optimizers{std::move(optimizer)}, std::move(loss),
              std::move(options)) {}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model, Optimizers optimizers, LossFunction loss,
                 TrainerOptions options)
    : Trainer(std::move(model), std::move(optimizers), OptimizerForms{.make = {}, .allowed = {}},
              std::move(loss), std::move(options)) {}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model, OptimizerForms forms, LossFunction loss,
                 TrainerOptions options)
    : Trainer(std::move(model), Optimizers{FirstOf(forms)}, forms, std::move(loss),
              std::move(options)) {}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model, Optimizers optimizers,
                 OptimizerForms forms, LossFunction loss, TrainerOptions options)
    : options_(OfThisStage(std::move(options))),
      engine_(
          std::make_unique<StepEngine>(std::move(model), optimizers, std::move(loss), options_)),
      optimizers_(std::make_unique<TrainedOptimizers>(std::move(optimizers), std::move(forms),
                                                      engine_->model(), engine_->team())),
      choice_(std::make_unique<LeverChoice>(*engine_, *optimizers_)),
      state_(std::make_unique<TrainerState>(*engine_, *optimizers_, *choice_, ema_, steps_)) {
  if (options_.ema) ema_.emplace(engine_->model(), *options_.ema);
}

Trainer::~Trainer() = default;

const Trainer::Optimizers& Trainer::optimizers() const { return optimizers_->list(); }
Metrics& Trainer::metrics() { return engine_->metrics(); }
const Levers& Trainer::levers() const { return engine_->levers(); }
std::optional<OptimizerForm> Trainer::optimizer_form() const { return optimizers_->form(); }
std::optional<double> Trainer::expected_seconds() const { return choice_->expected_seconds(); }
const Budget& Trainer::budget() const { return engine_->budget(); }
std::shared_ptr<void> Trainer::WholeModel() { return engine_->team().WholeModel(); }
Bytes Trainer::LeastBudget(const Batch& batch) { return choice_->LeastBudget(batch); }

void Trainer::Save(const std::filesystem::path& path, const std::string& extra) const {
  CheckNotSwapped();
  state_->Save(path, extra);
}

std::string Trainer::Load(const std::filesystem::path& path) {
  CheckNotSwapped();
  return state_->Load(path);
}

std::string Trainer::ExtraIn(const std::filesystem::path& path) const {
  return state_->ExtraIn(path);
}

std::map<std::string, double> Trainer::MetricsOfAll() {
  Metrics all;
  const auto texts = engine_->team().ranks().Tell(engine_->metrics().Text());
  for (const std::string& text : texts) all.AddText(text);
  return all.means();
}

void Trainer::CheckNotSwapped() const {
  TORCH_CHECK(!ema_ || !ema_->swapped(),
              "the averages are swapped in: let the Swapped go before training, saving or loading");
}

StepReport Trainer::Step(const Batch& batch) {
  batch.CheckRows(/*least=*/engine_->team().ranks().alone() ? 1 : 0);
  CheckNotSwapped();
  choice_->ChooseTogether(batch, steps_);
  choice_->TryUpwardAgain();
  if (engine_->team().ranks().alone()) engine_->CheckLossSplits(batch);
  StepReport report{.step = steps_};
  const PeakScope peak(engine_->budget());
  const double begin = Seconds();
  std::vector<Levers> failed;
  while (true) {
    const std::vector<int> full = Attempt(batch, report);
    if (full.empty()) break;
    ++report.retries;
    DoTogether(engine_->team().ranks(), [&] { choice_->GiveWay(batch, failed, full); });
  }
  // Nothing from here on can be repeated: the parameters are new.
  if (engine_->scaler().enabled()) engine_->scaler().Update();
  engine_->team().ClearGradients();
  if (ema_ && !report.skipped) ema_->Update();
  choice_->StepIsDone();
  ++steps_;
  report.seconds = Seconds() - begin;
  report.memory = peak.figures();
  report.levers = levers();
  report.optimizer = optimizer_form();
  report.graphed = engine_->graph().replayed();
  report.scale = engine_->scaler().enabled() ? engine_->scaler().scale() : 1;
  report.metrics = engine_->metrics().means();
  return report;
}

std::vector<int> Trainer::Attempt(const Batch& batch, StepReport& report) {
  std::optional<StepUndo> undo;
  std::function<void()> step;
  const auto end = [&] {
    step = nullptr;
    if (undo) undo->Undo();
    engine_->scaler().Forget();
  };
  try {
    engine_->team().ranks().Doing(c10::str("step ", steps_));
    std::vector<int> full = engine_->team().ranks().Try([&] {
      if (!engine_->team().ranks().alone()) engine_->CheckLossSplits(batch);
      engine_->metrics().Clear();
      undo.emplace(engine_->model(), options_.device, [this] { engine_->team().ClearGradients(); });
      step = Prepare(report, engine_->Gradients(batch));
    });
    if (!full.empty()) {
      end();
      return full;
    }
    report.skipped = !step;
    const bool stops = !engine_->scaler().enabled() && options_.not_finite == NotFinite::kStop;
    if (report.skipped && stops) throw NotFiniteError(report.not_finite, steps_);
  } catch (...) {
    // Whatever it is: a loss function may throw anything.
    end();
    throw;
  }
  // What it needs was taken on all ranks.
  if (step) step();
  if (step) engine_->team().AfterStep();
  return {};
}

std::function<void()> Trainer::Prepare(StepReport& report, const at::Tensor& loss) {
  for (torch::optim::Optimizer* const optimizer : optimizers_->stepped())
    engine_->scaler().Unscale(*optimizer);
  if (options_.schedule) optimizers_->SetRates(FactorAt(*options_.schedule, steps_));
  // While the device computes, but not where clipping is still to change the gradients.
  std::function<void()> step;
  if (options_.clip_norm == 0) step = PrepareAll(optimizers_->stepped());
  const bool finite = AreFinite(report, loss);
  // The gradients were waited for; for the optimizer's part nobody waits.
  report.loss = loss.item<double>();
  if (!finite) return {};
  if (options_.clip_norm > 0) {
    engine_->team().ClipNorm(options_.clip_norm);
    step = PrepareAll(optimizers_->stepped());
  }
  return step;
}

bool Trainer::AreFinite(StepReport& report, const at::Tensor& loss) {
  const bool scaled = engine_->scaler().enabled();
  if (!scaled && options_.not_finite == NotFinite::kIgnore) return true;
  std::optional<std::string> found;
  bool finite = scaled && engine_->scaler().FoundFinite();
  if (!finite) found = NameNotFinite(engine_->team(), loss);
  if (!scaled) finite = !found;
  const bool on_all = engine_->team().OnAll(finite);
  if (scaled && finite && !on_all) engine_->scaler().FoundElsewhere();
  if (!on_all) report.not_finite = finite ? "a gradient of another rank" : found.value_or("");
  return on_all;
}

double Trainer::Evaluate(const Batch& batch) {
  Ranks& ranks = engine_->team().ranks();
  batch.CheckRows(/*least=*/ranks.alone() ? 1 : 0);
  const Evaluating evaluating(engine_->model());
  std::optional<Ema::Swapped> averages;
  if (ema_) averages.emplace(ema_->SwapIn());
  const bool whole = options_.reduction == Reduction::kWholeBatch;
  const std::int64_t usual = engine_->team().UsualRows(batch.size());
  Pieces pieces{.rows = std::max<std::int64_t>(usual, 1),
                .reduction = options_.reduction,
                .weight = options_.weight};
  ranks.Doing("evaluation");
  while (true) {
    double loss = 0;
    std::exception_ptr own;
    const std::vector<int> full = ranks.Try([&] {
      engine_->metrics().Clear();
      try {
        loss = engine_->Evaluate(batch, pieces);
      } catch (const std::exception& error) {
        if (IsOutOfMemory(error)) own = std::current_exception();
        throw;
      }
    });
    if (full.empty()) return loss;
    DoTogether(ranks, [&] {
      if (!own && !engine_->team().in_step()) return;
      const bool graph_dropped = engine_->graph().RanOut();
      engine_->budget().ReleaseCached();
      if (graph_dropped) return;
      if (own && (pieces.rows == 1 || whole)) std::rethrow_exception(own);
      pieces.rows = (pieces.rows + 1) / 2;
    });
  }
}

}  // namespace plimsoll::train
