// Which levers a trainer takes: chosen first, agreed on with other ranks, and given way from.
#include <algorithm>
#include <functional>

#include "train/parallel/ranks/agreement.h"
#include "train/trainer/trainer_trials.h"

namespace plimsoll::train {
namespace {

constexpr std::int64_t kFirstPatience = 32;

}  // namespace

std::vector<OptimizerForm> Trainer::FormsToTry() const {
  std::vector<OptimizerForm> forms = forms_.allowed;
  const bool begun = !optimizers_[0]->state().empty();
  // A state in 8 bits is neither made of one in fp32 nor made one.
  std::erase_if(forms, [&](OptimizerForm form) {
    const bool eight_bits = form == OptimizerForm::kEightBits || form_ == OptimizerForm::kEightBits;
    return begun && form != form_ && eight_bits;
  });
  return forms;
}

std::optional<Levers> Trainer::ChooseWithin(const Batch& batch, Trials& trials) {
  const LeverLimits limits = LimitsFor(batch.size());
  TORCH_CHECK(limits.may_split || limits.micro_batch.value_or(batch.size()) >= batch.size(),
              "micro_batch asks for pieces, and batch normalization makes them another model; set "
              "split_batch_norm to allow it");
  if (forms_.allowed.empty()) return planner_.Choose(limits, trials);
  const OptimizerForm before = *form_;
  for (const OptimizerForm form : FormsToTry()) {
    try {
      UseForm(form);
    } catch (const c10::OutOfMemoryError&) {
      continue;  // not even its state
    }
    if (auto chosen = planner_.Choose(limits, trials)) return chosen;
  }
  UseForm(before);
  return std::nullopt;
}

Levers Trainer::UntriedLevers(const Batch& batch) const {
  const LeverLimits limits = LimitsFor(batch.size());
  const std::int64_t usual = limits.may_split ? team_->UsualRows(batch.size()) : batch.size();
  return {.micro_batch = options_.micro_batch.value_or(std::max(usual, limits.least_rows)),
          .checkpoint = options_.checkpoint.value_or(CheckpointPolicy()),
          .offload = options_.offload.value_or(false),
          .chunked_loss = limits.chunked_loss.value_or(false)};
}

void Trainer::Choose(const Batch& batch) {
  if (!team_->tries_alone()) {
    // A state that was loaded may have come in another.
    if (form_ && std::ranges::count(FormsToTry(), forms_.allowed.front()) > 0) {
      try {
        UseForm(forms_.allowed.front());
      } catch (const c10::OutOfMemoryError&) {
        // It stays as it is, and ranks agree on it.
      }
    }
    Use(UntriedLevers(batch));
    chosen_for_ = batch.size();
    better_.clear();
    return;
  }
  Trials trials(*this, batch);
  const auto chosen = ChooseWithin(batch, trials);
  if (!chosen) throw Shortage(batch);
  Use(*chosen);
  chosen_for_ = batch.size();
  expected_seconds_ = trials.expected_seconds();
  better_.clear();
  budget_.ReleaseCached();
}

void Trainer::ChooseTogether(const Batch& batch) {
  Ranks& ranks = team_->ranks();
  const bool here = batch.size() > chosen_for_;
  if (ranks.Sum(here ? 1.0 : 0.0) == 0) return;
  ranks.Doing(c10::str("choosing levers for step ", steps_));
  try {
    DoTogether(ranks, [&] {
      if (here) Choose(batch);
      AgreeOnForm(batch);
      if (team_->in_step()) AgreeOnLevers(batch);
    });
  } catch (...) {
    // Some have chosen and others not: all choose anew, whatever comes next.
    if (!ranks.alone()) chosen_for_ = 0;
    throw;
  }
}

void Trainer::AgreeOnForm(const Batch& batch) {
  if (forms_.allowed.size() < 2) return;
  const auto frugality = [&](OptimizerForm form) {
    return std::ranges::find(forms_.allowed, form) - forms_.allowed.begin();
  };
  OptimizerForm agreed = *form_;
  for (const std::string& name : team_->ranks().Tell(std::string(FormName(*form_)))) {
    const OptimizerForm one = ParseForm(name);
    if (frugality(one) > frugality(agreed)) agreed = one;
  }
  if (agreed == *form_) return;
  UseForm(agreed);
  if (!team_->tries_alone()) return Use(UntriedLevers(batch));
  Trials trials(*this, batch);
  const auto chosen = batch.size() > 0 ? planner_.Choose(LimitsFor(batch.size()), trials)
                                       : std::optional<Levers>(levers_);
  if (!chosen) throw Shortage(batch);
  Use(*chosen);
}

void Trainer::AgreeOnLevers(const Batch& batch) {
  Ranks& ranks = team_->ranks();
  std::vector<Levers> candidates;
  for (const std::string& text : ranks.Tell(TextOf(levers_))) {
    const Levers one = LeversFrom(text);
    // That of a rank without rows.
    if (one.micro_batch > 0 && std::ranges::count(candidates, one) == 0) candidates.push_back(one);
  }
  // Those that split least first.
  std::ranges::stable_sort(candidates, std::greater(), &Levers::micro_batch);
  better_.clear();
  before_trying_.reset();
  const Levers own = levers_;
  bool agreed = false;
  for (const Levers& one : candidates) {
    Trials trials(*this, batch);
    const bool known = one == own || batch.size() == 0 || !team_->tries_alone();
    const bool fits = known || trials.Fits(one);
    agreed = ranks.Sum(fits ? 0.0 : 1.0) == 0;
    if (agreed) Use(one);
    if (agreed) break;
  }
  if (!agreed) throw Shortage(batch);
  double most = static_cast<double>(-batch.size());
  at::Tensor rows = at::tensor(most, at::kDouble);
  ranks.Least(rows);
  chosen_for_ = std::max(chosen_for_, static_cast<std::int64_t>(-rows.item<double>()));
}

void Trainer::GiveWay(const Batch& batch, std::vector<Levers>& failed,
                      const std::vector<int>& full) {
  const int leader = full.front();
  const bool here = std::ranges::count(full, team_->ranks().rank()) > 0;
  if (!here && !team_->in_step()) return;
  const bool graph_dropped = graph_.RanOut();
  budget_.ReleaseCached();
  if (graph_dropped) return;
  calm_steps_ = 0;
  if (before_trying_) {
    better_.push_back(levers_);
    Use(*before_trying_);
    before_trying_.reset();
    patience_ *= 2;
    return;
  }
  // The first time it may have been pieces that did not fit together, or another program.
  const Levers now = levers_;
  const bool again = std::ranges::count(failed, now) > 0;
  failed.push_back(now);
  if (!again) return;
  const bool leads = !team_->in_step() || team_->ranks().rank() == leader;
  Levers less = now;
  const bool another_form = !team_->tries_alone() && GivesWayByForm(now, batch);
  if (another_form) {
    failed.clear();
    return;
  }
  if (leads) {
    const auto found = LesserThan(now, batch, failed);
    if (!found) throw Shortage(batch);
    less = *found;
  }
  if (team_->in_step()) {
    less = LeversFrom(team_->ranks().Tell(TextOf(less)).at(static_cast<std::size_t>(leader)));
  }
  better_.push_back(now);
  Use(less);
  CheckLossSplits(batch);
  patience_ = std::max(patience_, kFirstPatience);
}

/// The levers are the same on all ranks, and so is what comes after them.
bool Trainer::GivesWayByForm(const Levers& now, const Batch& batch) {
  const std::int64_t rows = std::max<std::int64_t>(batch.size(), 1);
  if (LessUntried(now, LimitsFor(rows)) || !form_) return false;
  const std::vector<OptimizerForm> forms = FormsToTry();
  const auto found = std::ranges::find(forms, *form_);
  if (found == forms.end() || found + 1 == forms.end()) return false;
  UseForm(*(found + 1));
  Use(UntriedLevers(batch));
  return true;
}

std::optional<Levers> Trainer::LesserThan(const Levers& now, const Batch& batch,
                                          const std::vector<Levers>& failed) {
  const LeverLimits limits = LimitsFor(batch.size());
  if (!team_->tries_alone()) return LessUntried(now, limits);
  Trials trials(*this, batch);
  auto less = planner_.Less(now, limits, trials);
  // What ran out once in this step is not gone back to; and there is an end to it.
  constexpr int kMost = 32;
  for (int i = 0; less && std::ranges::count(failed, *less) > 0; ++i) {
    less = i < kMost ? planner_.Less(*less, limits, trials) : std::nullopt;
  }
  Use(now);
  return less;
}

void Trainer::TryUpwardAgain() {
  if (better_.empty() || calm_steps_ < patience_) return;
  calm_steps_ = 0;
  before_trying_ = levers_;
  const Levers more = better_.back();
  better_.pop_back();
  Use(more);
}

}  // namespace plimsoll::train
