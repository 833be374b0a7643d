#include "plan/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/parallel.h"
#include "plan/planned_run.h"
#include "plan/standings.h"

namespace plimsoll {
namespace {

std::vector<Choice> AllChoices(const PlanRequest& request, Numerics most) {
  std::vector<Choice> choices = {Together(request, StartOf(request))};
  for (const PlanLever* lever : Levers()) {
    if (lever->worth_trying == nullptr) continue;
    const std::size_t before = choices.size();
    std::map<const Variant*, std::vector<LeverValue>> worth_trying;
    for (std::size_t i = 0; i < before; ++i) {
      const Variant& variant = VariantOf(request.job, choices[i]);
      if (variant.compiled && !lever->of_compiled) continue;
      const auto [values, is_new] = worth_trying.try_emplace(&variant);
      if (is_new) values->second = lever->worth_trying(request, variant);
      for (const LeverValue& value : values->second) {
        if (lever->numerics(request.job, value) > most) continue;
        if (value.text() == choices[i].TextOf(lever->name)) continue;
        Choice choice = WithLever(request, choices[i], *lever, &value);
        if (!Contradiction(choice)) choices.push_back(std::move(choice));
      }
    }
  }
  return choices;
}

/// Those that set a lever which changes time alone, and not by a percent: TF32 beside bf16.
void LeaveOutNeedless(std::vector<Family>& families) {
  const auto time_of = [&](const Choice& choice) {
    const auto found = std::find_if(families.begin(), families.end(),
                                    [&](const Family& family) { return family.base == choice; });
    return found == families.end() ? Standings::kNone : found->least_us;
  };
  std::vector<Family> kept;
  for (const Family& family : families) {
    const std::vector<LeverSetting> levers = LeversOf(family.base);
    const bool needless = std::any_of(levers.begin(), levers.end(), [&](const LeverSetting& set) {
      return set.lever->time_alone &&
             family.least_us > (1 - kWorthALever) * time_of(family.base.Without(set.lever->name));
    });
    if (!needless) kept.push_back(family);
  }
  families = std::move(kept);
}

/// Of two that are about as fast the one with fewer levers comes first, since it makes the other
/// needless.
double Order(const Family& family) {
  return family.least_us / std::pow(1 - kWorthALever, double(family.base.set.size()));
}

/// So many combinations are timed whatever that takes.
constexpr std::size_t kLeastTimed = 4;

/// To time a combination takes a part of what there is to spend: a third for all of them.
std::size_t LeaveOutUnaffordable(std::vector<Choice>& choices, const Evaluator& evaluator,
                                 WorkBudget& budget) {
  constexpr std::int64_t kShare = 3;
  constexpr std::int64_t kLeast = kLeastTimed;
  const std::int64_t affordable =
      std::max(kLeast, budget.left() / kShare / std::max<std::int64_t>(1, evaluator.WorkToTime()));
  const auto all = static_cast<std::int64_t>(choices.size());
  budget.Spend(std::min(affordable, all) * evaluator.WorkToTime());
  if (all <= affordable) return 0;
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.set.size() < b.set.size(); });
  choices.resize(static_cast<std::size_t>(affordable));
  return static_cast<std::size_t>(all - affordable);
}

}  // namespace

Choice StartOf(const PlanRequest& request) {
  const std::int64_t of_gpu = request.samples / request.gpus;
  Choice start{.batch = of_gpu};
  if (const int captured = CapturedPasses(request.job); of_gpu % captured == 0) {
    start.batch = of_gpu / captured;
  } else {
    start = WithMicroBatches(request.job, start, 1);
  }
  if (request.gpus == 1) return start;
  return start.With(kParallelLever.name, DataParallelValue(request.gpus));
}

Choice Split(const Job& job, const Choice& choice, int micro_batches) {
  Choice split = WithMicroBatches(job, choice, micro_batches);
  split.batch = choice.batch * MicroBatchesOf(job, choice) / micro_batches;
  return split;
}

Choice Together(const PlanRequest& request, const Choice& choice) {
  if (MicroBatchesOf(request.job, choice) == 1 || !CanSplit(request)) return choice;
  return Split(request.job, choice, 1);
}

bool CanSplit(const PlanRequest& request) {
  return (!request.keep_numerics || AccumulationKeepsResults(request.job)) &&
         !CannotAccumulate(request.job);
}

Numerics NumericsOfFamily(const PlanRequest& request, const Choice& base) {
  return NumericsOf(request.job, base.Without(kAccumulationLever.name));
}

Choice WithLever(const PlanRequest& request, const Choice& choice, const PlanLever& lever,
                 const LeverValue* value) {
  Choice other = value == nullptr ? choice.Without(lever.name) : choice.With(lever.name, *value);
  other.batch =
      std::max<std::int64_t>(1, request.samples * choice.batch / SamplesOf(request.job, other));
  return other;
}

namespace {

/// Micro-batches that can be split as captured may differ beside another change: with which one.
std::string ReasonOf(const Job& job, const Choice& choice, const Error& error) {
  if (CannotAccumulate(job)) return error.message;
  for (const auto& [lever, value] : LeversOf(choice)) {
    if (lever->rewrite == nullptr || lever == &kAccumulationLever) continue;
    const Result<Job> changed = JobOf(job, Choice{}.With(lever->name, *value));
    const std::optional<Error> why = changed ? CannotAccumulate(*changed) : std::nullopt;
    if (!why || why->message != error.message) continue;
    return fmt::format("with {}, {}", lever->describe(job, choice, *value), error.message);
  }
  return error.message;
}

}  // namespace

bool CannotBeDone(const Job& job, const Choice& choice, const Error& error,
                  std::set<std::string>& refused) {
  if (choice.set.empty()) return false;
  refused.insert(ReasonOf(job, choice, error));
  return true;
}

Result<Families> FamiliesOf(const PlanRequest& request, Numerics least, Numerics most,
                            Evaluator& evaluator, WorkBudget& budget,
                            std::set<std::string>& refused) {
  std::vector<Choice> choices = AllChoices(request, most);
  std::erase_if(choices,
                [&](const Choice& choice) { return NumericsOfFamily(request, choice) < least; });
  std::size_t left_out = LeaveOutUnaffordable(choices, evaluator, budget);
  std::vector<std::optional<Result<double>>> times(choices.size());
  ParallelFor(
      choices.size(),
      [&](std::size_t i) {
        if (i >= kLeastTimed && evaluator.OutOfTime()) return;
        times[i] = evaluator.StepMicroseconds(choices[i]);
      },
      evaluator.Threads());
  std::vector<Family> families;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (!times[i]) {
      ++left_out;
    } else if (*times[i]) {
      families.push_back({choices[i], **times[i] / double(SamplesOf(request.job, choices[i]))});
    } else if (!CannotBeDone(request.job, choices[i], times[i]->error(), refused)) {
      return times[i]->error();
    }
  }
  LeaveOutNeedless(families);
  std::stable_sort(families.begin(), families.end(),
                   [](const Family& a, const Family& b) { return Order(a) < Order(b); });
  return Families{.all = std::move(families), .left_out = left_out};
}

}  // namespace plimsoll
