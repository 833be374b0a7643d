#include "plan/family_search.h"

#include <algorithm>

#include "job/transforms/accumulate.h"
#include "plan/checkpoint_model.h"
#include "plan/planned_run.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostPasses = 10;
/// For each choice of modules to checkpoint.
constexpr int kReplays = 6;
/// What a model of checkpoints takes, as many times as the time of a step does.
constexpr std::int64_t kModelling = 1;
/// Blocks in part take a policy function in the user's code: for so much less time alone.
constexpr double kSelectiveGain = 0.98;
/// torch.utils.checkpoint.create_selective_checkpoint_contexts
constexpr TorchVersion kFirstSelective = {2, 4};

Choice InPasses(const Choice& base, int passes) {
  Choice choice = WithPasses(base, passes);
  choice.batch = base.batch / passes;
  return choice;
}

int ReplaysWithin(const WorkBudget& budget, const Way& plain) {
  const std::int64_t affordable = budget.left() / std::max<std::int64_t>(1, plain.work);
  return static_cast<int>(std::clamp<std::int64_t>(affordable, 1, kReplays));
}

LeverSet WithCheckpoints(const Choice& choice) {
  return SetBy(choice) | BitOf(kCheckpointingLever);
}

}  // namespace

CheckpointScore ScoreOf(const Way& way) {
  return {.fits = way.SurelyFits(),
          .in_use = way.trial.unlimited.allocated.best,
          .high = way.trial.needs.reserved.best,
          .room = way.trial.room,
          .us = way.trial.step_us};
}

/// In how many passes the samples can be gone through: divisors, few of them.
std::vector<int> FamilySearch::PassesFor(const Choice& base) const {
  if (Contradiction(InPasses(base, 2)) ||
      CannotAccumulate(request_.job, request_.job.variants.front()) ||
      (request_.keep_numerics && !PassesKeepResults(request_.job))) {
    return {1};
  }
  std::vector<int> passes;
  for (std::int64_t n = 1; n <= base.batch && n <= 4096 && passes.size() < kMostPasses; ++n) {
    if (base.batch % n == 0) passes.push_back(static_cast<int>(n));
  }
  return passes;
}

std::optional<Error> FamilySearch::Plain(const Family& family, Standings standings,
                                         WorkBudget& budget, std::vector<Way>& found) {
  const auto evaluate = [&](int passes) -> Result<bool> {
    const Result<Way> outcome = evaluator_.Evaluate(InPasses(family.base, passes));
    if (!outcome) return outcome.error();
    found.push_back(*outcome);
    budget.Spend(outcome->work);
    return outcome->SurelyFits();
  };
  const Result<bool> in_one = evaluate(1);
  if (!in_one) return in_one.error();
  if (*in_one) return std::nullopt;
  std::vector<int> passes;
  for (const int n : PassesFor(family.base)) {
    if (n == 1) continue;
    if (budget.spent()) break;
    const Choice choice = InPasses(family.base, n);
    const Result<double> us = evaluator_.StepMicroseconds(choice);
    if (!us) return us.error();
    budget.Spend(evaluator_.WorkToTime());
    if (*us / double(SamplesOf(request_.job, choice)) < standings.Limit(SetBy(choice)))
      passes.push_back(n);
  }
  // More passes take more time and less memory: the most of them decide whether any fit.
  std::size_t fails = 0;
  for (std::size_t fits = passes.size(); fits > fails && !budget.spent();) {
    const std::size_t middle = fits == passes.size() ? fits - 1 : fails + (fits - fails) / 2;
    const Result<bool> in_so_many = evaluate(passes[middle]);
    if (!in_so_many) return in_so_many.error();
    if (!*in_so_many && fits == passes.size()) return std::nullopt;
    *in_so_many ? fits = middle : fails = middle + 1;
  }
  return std::nullopt;
}

/// The modules to checkpoint are those of the job without other levers: what these change in memory
/// is seen by the replays.
const CheckpointSets& FamilySearch::SetsFor(const Choice& choice, bool selective) {
  const Variant& variant = VariantOf(request_.job, choice);
  const std::vector<std::string> apart = NotCheckpointed(request_.job, variant, choice);
  return sets_.Get({&variant, choice.batch, apart, selective}, [&] {
    return CheckpointSets(ModelCheckpointing(request_.job, variant, request_.gpu,
                                             {.batch = choice.batch,
                                              .torch = TorchFor(request_.job, request_.options),
                                              .calibration = request_.options.calibration.get()},
                                             {.apart = apart, .selective = selective}));
  });
}

Result<std::vector<FamilySearch::Candidate>> FamilySearch::Candidates(const Family& family,
                                                                      const Standings& standings,
                                                                      WorkBudget& budget,
                                                                      std::vector<Way>& found) {
  std::vector<Candidate> candidates;
  for (const int passes : PassesFor(family.base)) {
    if (budget.spent()) break;
    const Choice choice = InPasses(family.base, passes);
    const double limit_us = standings.Limit(WithCheckpoints(choice));
    const Result<double> us = evaluator_.StepMicroseconds(choice);
    if (!us) return us.error();
    if (*us / double(SamplesOf(request_.job, choice)) >= limit_us) break;
    const Result<Way> plain = evaluator_.Evaluate(choice);
    if (!plain) return plain.error();
    budget.Spend(plain->work);
    if (plain->SurelyFits()) break;
    found.push_back(*plain);
    if (standings.IsDominated(*plain)) continue;
    budget.Spend(kModelling * evaluator_.WorkToTime());
    if (VariantOf(request_.job, choice).compiled) break;
    const CheckpointSets& sets = SetsFor(choice);
    if (sets.empty()) break;
    const double least_us =
        LeastTime(sets, ScoreOf(*plain), passes) / double(SamplesOf(request_.job, choice));
    if (least_us < limit_us || limit_us == Standings::kNone)
      candidates.push_back({*plain, least_us});
  }
  return candidates;
}

std::optional<Error> FamilySearch::Checkpointed(const Family& family, Standings standings,
                                                WorkBudget& budget, std::vector<Way>& found) {
  Result<std::vector<Candidate>> candidates = Candidates(family, standings, budget, found);
  if (!candidates) return candidates.error();
  std::stable_sort(candidates->begin(), candidates->end(),
                   [](const Candidate& a, const Candidate& b) { return a.least_us < b.least_us; });
  // The most passes take the least memory: they decide whether anything fits at all.
  if (standings.Best() == Standings::kNone) {
    std::stable_sort(candidates->begin(), candidates->end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.plain.choice.batch < b.plain.choice.batch;
                     });
  }
  for (const Candidate& candidate : *candidates) {
    const double limit_us = standings.Limit(WithCheckpoints(candidate.plain.choice));
    if (candidate.least_us >= limit_us && limit_us < Standings::kNone) continue;
    if (budget.spent()) break;
    const Result<bool> helps = CheckpointOne(candidate.plain, budget, found, limit_us);
    if (!helps) return helps.error();
    standings.Add(found.back());
    if (!*helps || standings.Best() == Standings::kNone) return std::nullopt;
  }
  return std::nullopt;
}

Result<bool> FamilySearch::CheckpointOne(const Way& plain, WorkBudget& budget,
                                         std::vector<Way>& found, double limit_us) {
  const CheckpointSets& sets = SetsFor(plain.choice);
  if (sets.empty()) return false;
  const double most_us = limit_us * double(plain.samples);
  const Result<CheckpointChoice> whole = Choose(sets, plain, most_us, budget, found);
  if (!whole) return whole.error();
  if (whole->modules.empty()) return !whole->model_fails;
  if (!CanBeSelective(plain.choice) || !whole->score.fits || budget.spent()) return true;
  budget.Spend(kModelling * evaluator_.WorkToTime());
  const CheckpointSets& in_part = SetsFor(plain.choice, true);
  const double worth_it_us = kSelectiveGain * whole->score.us;
  if (LeastTime(in_part, ScoreOf(plain), PassesOf(plain.choice)) >= worth_it_us) return true;
  const std::size_t so_far = found.size();
  const Result<CheckpointChoice> selective = Choose(in_part, plain, worth_it_us, budget, found);
  if (!selective) return selective.error();
  if (!selective->score.fits) found.resize(so_far);
  return true;
}

Result<CheckpointChoice> FamilySearch::Choose(const CheckpointSets& sets, const Way& plain,
                                              double most_us, WorkBudget& budget,
                                              std::vector<Way>& found) {
  const auto with = [&](const std::vector<std::string>& modules) {
    return evaluator_.Evaluate(plain.choice.With(kCheckpointingLever.name, ModulesValue(modules)));
  };
  const auto score = [&](const std::vector<std::string>& modules) -> Result<CheckpointScore> {
    const Result<Way> outcome = with(modules);
    if (!outcome) return outcome.error();
    budget.Spend(outcome->work);
    return ScoreOf(*outcome);
  };
  Result<CheckpointChoice> best = BestCheckpoints(sets, ScoreOf(plain), score,
                                                  {.replays = ReplaysWithin(budget, plain),
                                                   .most_us = most_us,
                                                   .passes = PassesOf(plain.choice)});
  if (!best || best->modules.empty()) return best;
  const Result<Way> outcome = with(best->modules);
  if (!outcome) return outcome.error();
  found.push_back(*outcome);
  return best;
}

bool FamilySearch::CanBeSelective(const Choice& choice) const {
  return TorchFor(request_.job, request_.options) >= kFirstSelective && !SplitsTheModel(choice);
}

}  // namespace plimsoll
