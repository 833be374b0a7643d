#include "train/trainer/lever_choice.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "train/parallel/ranks/agreement.h"

namespace plimsoll::train {
namespace {

constexpr std::int64_t kFirstPatience = 32;
/// So that doubling it has an end.
constexpr std::int64_t kMostPatience = std::int64_t{1} << 40;

/// RAII guard: the device has no limit.
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

LeverChoice::LeverChoice(StepEngine& engine, TrainedOptimizers& optimizers)
    : engine_(engine),
      optimizers_(optimizers),
      options_(engine.options()),
      planner_(engine.blocks().size(), RatesOf(options_.device)) {}

LeverPlanner& LeverChoice::planner() {
  if (planned_for_ != optimizers_.changes()) {
    planner_ = LeverPlanner(engine_.blocks().size(), RatesOf(options_.device));
    planned_for_ = optimizers_.changes();
  }
  return planner_;
}

std::optional<Levers> LeverChoice::ChooseWithin(const Batch& batch, StepTrials& trials) {
  const LeverLimits limits = engine_.LimitsFor(batch.size());
  TORCH_CHECK(limits.may_split || limits.micro_batch.value_or(batch.size()) >= batch.size(),
              "micro_batch asks for pieces, and batch normalization makes them another model; set "
              "split_batch_norm to allow it");
  if (optimizers_.allowed().empty()) return planner().Choose(limits, trials);
  const OptimizerForm before = *optimizers_.form();
  for (const OptimizerForm form : optimizers_.FormsToTry()) {
    try {
      optimizers_.Use(form);
    } catch (const c10::OutOfMemoryError&) {
      continue;  // not even its state
    }
    if (auto chosen = planner().Choose(limits, trials)) return chosen;
  }
  optimizers_.Use(before);
  return std::nullopt;
}

Levers LeverChoice::UntriedLevers(const Batch& batch) const {
  const LeverLimits limits = engine_.LimitsFor(batch.size());
  const std::int64_t usual =
      limits.may_split ? engine_.team().UsualRows(batch.size()) : batch.size();
  return {.micro_batch = options_.micro_batch.value_or(std::max(usual, limits.least_rows)),
          .checkpoint = options_.checkpoint.value_or(CheckpointPolicy()),
          .offload = options_.offload.value_or(false),
          .chunked_loss = limits.chunked_loss.value_or(false)};
}

void LeverChoice::ChooseUntried(const Batch& batch) {
  const std::vector<OptimizerForm> forms = optimizers_.FormsToTry();
  // A state that was loaded may have come in another.
  if (optimizers_.form() && std::ranges::count(forms, optimizers_.allowed().front()) > 0) {
    try {
      optimizers_.Use(optimizers_.allowed().front());
    } catch (const c10::OutOfMemoryError&) {
      // It stays as it is, and ranks agree on it.
    }
  }
  engine_.Use(UntriedLevers(batch));
}

void LeverChoice::Choose(const Batch& batch) {
  if (engine_.team().tries_alone()) {
    StepTrials trials = TrialsOf(batch);
    const auto chosen = ChooseWithin(batch, trials);
    if (!chosen) throw ShortageOf(batch);
    engine_.Use(*chosen);
    expected_seconds_ = trials.expected_seconds();
    engine_.budget().ReleaseCached();
  } else {
    ChooseUntried(batch);
  }
  history_.chosen_for = batch.size();
  history_.better.clear();
}

void LeverChoice::ChooseTogether(const Batch& batch, std::int64_t step) {
  Ranks& ranks = engine_.team().ranks();
  const bool here = batch.size() > history_.chosen_for;
  if (ranks.Sum(here ? 1.0 : 0.0) == 0) return;
  ranks.Doing(c10::str("choosing levers for step ", step));
  try {
    DoTogether(ranks, [&] {
      if (here) Choose(batch);
      AgreeOnForm(batch);
      if (engine_.team().in_step()) AgreeOnLevers(batch);
    });
  } catch (...) {
    // Some have chosen and others not: all choose anew, whatever comes next.
    if (!ranks.alone()) history_.chosen_for = 0;
    throw;
  }
}

void LeverChoice::AgreeOnForm(const Batch& batch) {
  if (optimizers_.allowed().size() < 2) return;
  const auto frugality = [&](OptimizerForm form) {
    return std::ranges::find(optimizers_.allowed(), form) - optimizers_.allowed().begin();
  };
  OptimizerForm agreed = *optimizers_.form();
  for (const std::string& name :
       engine_.team().ranks().Tell(std::string(FormName(*optimizers_.form())))) {
    const OptimizerForm one = ParseForm(name);
    if (frugality(one) > frugality(agreed)) agreed = one;
  }
  if (agreed == *optimizers_.form()) return;
  optimizers_.Use(agreed);
  if (!engine_.team().tries_alone()) return engine_.Use(UntriedLevers(batch));
  StepTrials trials = TrialsOf(batch);
  const auto chosen = batch.size() > 0 ? planner().Choose(engine_.LimitsFor(batch.size()), trials)
                                       : std::optional<Levers>(engine_.levers());
  if (!chosen) throw ShortageOf(batch);
  engine_.Use(*chosen);
}

void LeverChoice::AgreeOnLevers(const Batch& batch) {
  Ranks& ranks = engine_.team().ranks();
  std::vector<Levers> candidates;
  for (const std::string& text : ranks.Tell(TextOf(engine_.levers()))) {
    const Levers one = LeversFrom(text);
    // That of a rank without rows.
    if (one.micro_batch > 0 && std::ranges::count(candidates, one) == 0) candidates.push_back(one);
  }
  // Those that split least first.
  std::ranges::stable_sort(candidates, std::greater(), &Levers::micro_batch);
  history_.better.clear();
  before_trying_.reset();
  const Levers own = engine_.levers();
  bool agreed = false;
  for (const Levers& one : candidates) {
    StepTrials trials = TrialsOf(batch);
    const bool known = one == own || batch.size() == 0 || !engine_.team().tries_alone();
    const bool fits = known || trials.Fits(one);
    agreed = ranks.Sum(fits ? 0.0 : 1.0) == 0;
    if (agreed) engine_.Use(one);
    if (agreed) break;
  }
  if (!agreed) throw ShortageOf(batch);
  double most = static_cast<double>(-batch.size());
  at::Tensor rows = at::tensor(most, at::kDouble);
  ranks.Least(rows);
  history_.chosen_for =
      std::max(history_.chosen_for, static_cast<std::int64_t>(-rows.item<double>()));
}

void LeverChoice::GiveWay(const Batch& batch, std::vector<Levers>& failed,
                          const std::vector<int>& full) {
  const int leader = full.front();
  const bool here = std::ranges::count(full, engine_.team().ranks().rank()) > 0;
  if (!here && !engine_.team().in_step()) return;
  const bool graph_dropped = engine_.graph().RanOut();
  engine_.budget().ReleaseCached();
  if (graph_dropped) return;
  history_.calm_steps = 0;
  if (before_trying_) return TakeBackUpward();
  // The first time it may have been pieces that did not fit together, or another program.
  const Levers now = engine_.levers();
  const bool again = std::ranges::count(failed, now) > 0;
  failed.push_back(now);
  if (!again) return;
  const bool leads = !engine_.team().in_step() || engine_.team().ranks().rank() == leader;
  Levers less = now;
  const bool another_form = !engine_.team().tries_alone() && GivesWayByForm(now, batch);
  if (another_form) {
    failed.clear();
    return;
  }
  if (leads) {
    const auto found = LesserThan(now, batch, failed);
    if (!found) throw ShortageOf(batch);
    less = *found;
  }
  if (engine_.team().in_step()) {
    less =
        LeversFrom(engine_.team().ranks().Tell(TextOf(less)).at(static_cast<std::size_t>(leader)));
  }
  history_.better.push_back(now);
  engine_.Use(less);
  engine_.CheckLossSplits(batch);
  history_.patience = std::max(history_.patience, kFirstPatience);
}

/// The levers are the same on all ranks, and so is what comes after them.
bool LeverChoice::GivesWayByForm(const Levers& now, const Batch& batch) {
  const std::int64_t rows = std::max<std::int64_t>(batch.size(), 1);
  if (LessUntried(now, engine_.LimitsFor(rows)) || !optimizers_.form()) return false;
  const std::vector<OptimizerForm> forms = optimizers_.FormsToTry();
  const auto found = std::ranges::find(forms, *optimizers_.form());
  if (found == forms.end() || found + 1 == forms.end()) return false;
  optimizers_.Use(*(found + 1));
  engine_.Use(UntriedLevers(batch));
  return true;
}

std::optional<Levers> LeverChoice::LesserThan(const Levers& now, const Batch& batch,
                                              const std::vector<Levers>& failed) {
  const LeverLimits limits = engine_.LimitsFor(batch.size());
  if (!engine_.team().tries_alone()) return LessUntried(now, limits);
  StepTrials trials = TrialsOf(batch);
  auto less = planner().Less(now, limits, trials);
  // What ran out once in this step is not gone back to; and there is an end to it.
  constexpr int kMost = 32;
  for (int i = 0; less && std::ranges::count(failed, *less) > 0; ++i) {
    less = i < kMost ? planner().Less(*less, limits, trials) : std::nullopt;
  }
  engine_.Use(now);
  return less;
}

void LeverChoice::TryUpwardAgain() {
  if (history_.better.empty() || history_.calm_steps < history_.patience) return;
  history_.calm_steps = 0;
  before_trying_ = engine_.levers();
  const Levers more = history_.better.back();
  history_.better.pop_back();
  engine_.Use(more);
}

void LeverChoice::TakeBackUpward() {
  history_.better.push_back(engine_.levers());
  engine_.Use(*before_trying_);
  before_trying_.reset();
  history_.patience = std::min(2 * history_.patience, kMostPatience);
}

Bytes LeverChoice::LeastBudget(const Batch& batch) {
  batch.CheckRows();
  TORCH_CHECK(engine_.team().tries_alone(),
              "no rank of a pipeline can try by itself how much memory a step needs");
  const Unlimited unlimited(options_.device);
  if (!optimizers_.form()) return LeastWithThisForm(batch);
  const OptimizerForm before = *optimizers_.form();
  std::vector<Bytes> needs;
  try {
    for (const OptimizerForm form : optimizers_.FormsToTry()) {
      optimizers_.Use(form);
      needs.push_back(LeastWithThisForm(batch));
    }
  } catch (...) {
    optimizers_.Use(before);
    throw;
  }
  optimizers_.Use(before);
  return std::ranges::min(needs);
}

Bytes LeverChoice::LeastWithThisForm(const Batch& batch) {
  StepTrials trials = TrialsOf(batch);
  Levers least = planner().Least(engine_.LimitsFor(batch.size()), trials);
  Bytes lowest = 0;
  for (const bool offload : {false, true}) {
    if (options_.offload.value_or(offload) != offload) continue;
    least.offload = offload;
    engine_.budget().ReleaseCached();
    const PeakScope peak(engine_.budget());
    TORCH_CHECK_WITH(OutOfMemoryError, trials.Fits(least),
                     "the device itself has too little memory");
    const Bytes held = peak.figures().peak_reserved;
    if (lowest == 0 || held < lowest) lowest = held;
  }
  return lowest;
}

DoesNotFit LeverChoice::ShortageOf(const Batch& batch) {
  const LeverLimits limits = engine_.LimitsFor(batch.size());
  Team& team = engine_.team();
  const MemoryFigures memory = engine_.budget().figures();
  const Bytes most = options_.budget.value_or(memory.peak_reserved);
  const FixedMemory fixed{.parameters = team.parameter_bytes(),
                          .gradients = team.gradient_bytes(),
                          .optimizer_state = optimizers_.StateStillToCome()};
  // A state that may go to the host need not be there.
  const bool state_may_go = optimizers_.allowed().size() > 1;
  Bytes least = memory.allocated + fixed.gradients;
  if (!state_may_go) least += fixed.optimizer_state;
  if (state_may_go && optimizers_.begun()) least = 0;
  const Bytes expected = planner().LeastPeak(limits).value_or(0);
  return Explain({.need = std::max({most, least, expected}),
                  .need_is_least = expected < std::max(most, least),
                  .budget = options_.budget,
                  .fixed = fixed,
                  .rows = MicroBatches(limits).back(),
                  .may_split = limits.may_split,
                  .whole_batch = options_.reduction == Reduction::kWholeBatch,
                  .blocks = engine_.blocks().size(),
                  .state_could_shrink = !optimizers_.HaveSmallState() && !state_may_go,
                  .levers_set = options_.micro_batch || options_.checkpoint || options_.offload ||
                                options_.chunked_loss});
}

void LeverChoice::StepIsDone() {
  before_trying_.reset();
  ++history_.calm_steps;
}

void LeverChoice::GoOnFrom(const Levers& levers, History history) {
  engine_.Use(levers);
  before_trying_.reset();
  history_ = std::move(history);
}

std::string LeverChoice::ChosenWithin() const {
  const auto text = [](const auto& value) {
    return value ? c10::str(*value) : std::string("free");
  };
  Ranks& ranks = engine_.team().ranks();
  return c10::str(
      options_.device.type(), ", budget ", text(options_.budget), ", precision ",
      PrecisionName(options_.precision), ", micro-batch ", text(options_.micro_batch),
      ", checkpoint ", options_.checkpoint ? options_.checkpoint->ToString() : std::string("free"),
      ", offload ", text(options_.offload), ", chunked loss ", text(options_.chunked_loss),
      ranks.alone() ? std::string() : c10::str(", ranks ", ranks.size()));
}

}  // namespace plimsoll::train
