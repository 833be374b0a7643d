#include "train/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "train/checkpointing/autocast.h"
#include "train/checkpointing/running_statistics.h"
#include "train/checkpointing/saved_tensors.h"
#include "train/common/wall_clock.h"
#include "train/gradients/recovery.h"
#include "train/optimizers/optimizer_state.h"
#include "train/optimizers/optimizer_step.h"
#include "train/parallel/ranks/agreement.h"
#include "train/trainer/trainer_trials.h"

namespace plimsoll::train {
namespace {

std::optional<AutocastState> AutocastFor(Precision precision, c10::Device device) {
  if (precision == Precision::kFloat32) return std::nullopt;
  return AutocastState{.device = device.type(),
                       .enabled = true,
                       .dtype = precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16};
}

template <class Pointer>
Pointer Checked(Pointer pointer, const char* what) {
  TORCH_CHECK(pointer != nullptr, "a trainer needs ", what);
  return pointer;
}

std::shared_ptr<torch::optim::Optimizer> FirstOf(const OptimizerForms& forms) {
  TORCH_CHECK(forms.make && !forms.allowed.empty(), "a trainer needs an optimizer");
  return forms.make(forms.allowed.front());
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
    : Trainer(std::move(model), Optimizers{std::move(optimizer)}, std::move(loss),
              std::move(options)) {}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model, Optimizers optimizers, LossFunction loss,
                 TrainerOptions options)
    : model_(Checked(std::move(model), "a model")),
      optimizers_(std::move(optimizers)),
      loss_(options.team.pipeline ? nullptr : Checked(std::move(loss), "a loss function")),
      options_(std::move(options)),
      budget_(options_.device, options_.budget),
      scaler_(GradScalerOptions{.enabled = options_.precision == Precision::kFloat16}),
      offload_(options_.device, model_->parameters(), options_.offload_options),
      statistics_(KeepRunningStatistics(*model_)),
      blocks_(*model_),
      vocabulary_losses_(VocabularyLossesOf(*model_)),
      planner_(blocks_.size(), RatesOf(options_.device)) {
  if (options_.team.pipeline && options_.checkpoint) {
    options_.checkpoint = options_.team.pipeline->OwnPart(*options_.checkpoint);
  }
  CheckOptions();
  Ranks alone;
  DoTogether(options_.ranks ? *options_.ranks : alone, [this] { CheckRoom(); });
  team_ = MakeTeam(*model_, options_.ranks.get(), options_.team, optimizers_);
  team_->UseForwardScope([this](const Batch& rows) {
    return ForwardScopeOf(rows, /*saves=*/at::GradMode::is_enabled());
  });
  Adopt(optimizers_);
  for (const auto& optimizer : optimizers_) {
    stepped_.push_back(optimizer.get());
    std::vector<double>& rates = base_rates_.emplace_back();
    for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  }
  if (options_.ema) ema_.emplace(*model_, *options_.ema);
}

Trainer::Trainer(std::shared_ptr<torch::nn::Module> model, OptimizerForms forms, LossFunction loss,
                 TrainerOptions options)
    : Trainer(std::move(model), FirstOf(forms), std::move(loss), std::move(options)) {
  forms_ = std::move(forms);
  form_ = forms_.allowed.front();
}

Trainer::~Trainer() = default;

std::shared_ptr<torch::optim::Optimizer> Trainer::Made(OptimizerForm form) const {
  auto optimizer = Checked(forms_.make(form), "an optimizer");
  Adopt({optimizer});
  return optimizer;
}

void Trainer::UseForm(OptimizerForm form) {
  if (form_ == form) return;
  const auto optimizer = Made(form);
  if (!optimizers_[0]->state().empty()) {
    StateSaver saver;
    AddOptimizer(saver, "", *optimizers_[0]);
    StateLoader loader = StateLoader::FromBytes(saver.Bytes());
    TakeOptimizer(loader, "", *optimizer)();
  }
  Take({optimizer}, form);
}

void Trainer::Take(Optimizers optimizers, OptimizerForm form) {
  optimizers_ = std::move(optimizers);
  stepped_.clear();
  for (const auto& optimizer : optimizers_) stepped_.push_back(optimizer.get());
  form_ = form;
  // What was seen of small steps has another base now.
  planner_ = LeverPlanner(blocks_.size(), RatesOf(options_.device));
}

void Trainer::CheckOptions() const {
  TORCH_CHECK(!optimizers_.empty(), "a trainer needs an optimizer");
  for (const auto& optimizer : optimizers_) Checked(optimizer.get(), "an optimizer");
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

void Trainer::CheckRoom() const {
  const Bytes held = budget_.figures().allocated;
  if (held <= options_.budget.value_or(held)) return;
  const FixedMemory fixed = Fixed();
  throw DoesNotFit({.need = held + fixed.gradients,
                    .need_is_least = true,
                    .budget = options_.budget,
                    .fixed = fixed,
                    .cause = FormatBytes(held) + " are held before training begins",
                    .lever = "Free what is not needed, or make the model smaller"});
}

void Trainer::CheckRanks() const {
  if (!options_.ranks || options_.ranks->alone()) return;
  TORCH_CHECK(!options_.cuda_graph, "a CUDA graph is for one rank alone");
  TORCH_CHECK(!options_.team.shard || !options_.ema,
              "moving averages need all that is trained, of which each rank keeps only a part");
}

void Trainer::Adopt(const Optimizers& optimizers) const {
  std::set<void*> seen;
  for (const auto& optimizer : optimizers) {
    std::set<void*> own;
    for (auto& group : optimizer->param_groups()) {
      std::erase_if(group.params(), [&](const at::Tensor& parameter) {
        void* const key = parameter.unsafeGetTensorImpl();
        TORCH_CHECK(!seen.contains(key), "two optimizers have the same parameter");
        return !own.insert(key).second;
      });
    }
    const auto parameters = model_->parameters();
    TORCH_CHECK(std::ranges::any_of(
                    parameters,
                    [&](const at::Tensor& one) { return own.contains(one.unsafeGetTensorImpl()); }),
                "an optimizer has no parameter of the model");
    seen.merge(own);
    team_->Adopt(*optimizer);
  }
}

void Trainer::SetRates() {
  if (!options_.schedule) return;
  const double factor = FactorAt(*options_.schedule, steps_);
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    auto& groups = optimizers_[i]->param_groups();
    for (std::size_t j = 0; j < groups.size(); ++j) {
      groups[j].options().set_lr(factor * base_rates_[i].at(j));
    }
  }
}

LeverLimits Trainer::LimitsFor(std::int64_t rows) const {
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

void Trainer::Use(const Levers& levers) {
  graph_.Drop();
  levers_ = levers;
  blocks_.Use(levers.checkpoint);
  for (VocabularyLossImpl* const loss : vocabulary_losses_) loss->set_chunked(levers.chunked_loss);
}

std::shared_ptr<void> Trainer::ForwardScopeOf(const Batch& rows, bool saves) {
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

at::Tensor Trainer::Loss(const Batch& rows) {
  const auto scope = ForwardScopeOf(rows, /*saves=*/false);
  return loss_(rows);
}

at::Tensor Trainer::Gradients(const Batch& batch) {
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
  const auto loss = [&](const Batch& rows) {
    const auto scope = ForwardScopeOf(rows, /*saves=*/true);
    return loss_(rows);
  };
  if (options_.cuda_graph && !trying_ && !levers_.offload) {
    if (const auto sum = graph_.Run(loss, batch, pieces)) return *sum;
  }
  return team_->AddGradients(loss, batch, pieces);
}

std::optional<std::string> Trainer::NameNotFinite(const at::Tensor& loss) const {
  auto found = FindNotFinite(team_->gradients());
  return found && !std::isfinite(loss.item<double>()) ? "loss" : found;
}

bool Trainer::AreFinite(StepReport& report, const at::Tensor& loss) {
  const bool scaled = scaler_.enabled();
  if (!scaled && options_.not_finite == NotFinite::kIgnore) return true;
  std::optional<std::string> found;
  bool finite = scaled && scaler_.FoundFinite();
  if (!finite) found = NameNotFinite(loss);
  if (!scaled) finite = !found;
  const bool on_all = team_->OnAll(finite);
  if (scaled && finite && !on_all) scaler_.FoundElsewhere();
  if (!on_all) report.not_finite = finite ? "a gradient of another rank" : found.value_or("");
  return on_all;
}

std::function<void()> Trainer::Prepare(StepReport& report, const at::Tensor& loss) {
  for (torch::optim::Optimizer* const optimizer : stepped_) scaler_.Unscale(*optimizer);
  SetRates();
  // While the device computes, but not where clipping is still to change the gradients.
  std::function<void()> step;
  if (options_.clip_norm == 0) step = PrepareAll(stepped_);
  const bool finite = AreFinite(report, loss);
  // The gradients were waited for; for the optimizer's part nobody waits.
  report.loss = loss.item<double>();
  if (!finite) return {};
  if (options_.clip_norm > 0) {
    team_->ClipNorm(options_.clip_norm);
    step = PrepareAll(stepped_);
  }
  return step;
}

std::map<std::string, double> Trainer::MetricsOfAll() {
  Metrics all;
  for (const std::string& text : team_->ranks().Tell(metrics_.Text())) all.AddText(text);
  return all.means();
}

void Trainer::CheckNotSwapped() const {
  TORCH_CHECK(!ema_ || !ema_->swapped(),
              "the averages are swapped in: let the Swapped go before training, saving or loading");
}

StepReport Trainer::Step(const Batch& batch) {
  batch.CheckRows(/*least=*/team_->ranks().alone() ? 1 : 0);
  CheckNotSwapped();
  ChooseTogether(batch);
  TryUpwardAgain();
  if (team_->ranks().alone()) CheckLossSplits(batch);
  StepReport report{.step = steps_};
  const PeakScope peak(budget_);
  const double begin = Seconds();
  std::vector<Levers> failed;
  while (true) {
    const std::vector<int> full = Attempt(batch, report);
    if (full.empty()) break;
    ++report.retries;
    DoTogether(team_->ranks(), [&] { GiveWay(batch, failed, full); });
  }
  // Nothing from here on can be repeated: the parameters are new.
  if (scaler_.enabled()) scaler_.Update();
  team_->ClearGradients();
  if (ema_ && !report.skipped) ema_->Update();
  before_trying_.reset();
  ++steps_;
  ++calm_steps_;
  report.seconds = Seconds() - begin;
  report.memory = peak.figures();
  report.levers = levers_;
  report.optimizer = form_;
  report.graphed = graph_.replayed();
  report.scale = scaler_.enabled() ? scaler_.scale() : 1;
  report.metrics = metrics_.means();
  return report;
}

std::vector<int> Trainer::Attempt(const Batch& batch, StepReport& report) {
  std::optional<StepUndo> undo;
  std::function<void()> step;
  const auto end = [&] {
    step = nullptr;
    if (undo) undo->Undo();
    scaler_.Forget();
  };
  try {
    team_->ranks().Doing(c10::str("step ", steps_));
    std::vector<int> full = team_->ranks().Try([&] {
      if (!team_->ranks().alone()) CheckLossSplits(batch);
      metrics_.Clear();
      undo.emplace(*model_, options_.device, [this] { team_->ClearGradients(); });
      step = Prepare(report, Gradients(batch));
    });
    if (!full.empty()) {
      end();
      return full;
    }
    report.skipped = !step;
    const bool stops = !scaler_.enabled() && options_.not_finite == NotFinite::kStop;
    if (report.skipped && stops) throw NotFiniteError(report.not_finite, steps_);
  } catch (...) {
    // Whatever it is: a loss function may throw anything.
    end();
    throw;
  }
  // What it needs was taken on all ranks.
  if (step) step();
  if (step) team_->AfterStep();
  return {};
}

}  // namespace plimsoll::train
