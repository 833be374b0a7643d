#include "plan/family_search.h"

#include <algorithm>
#include <functional>

#include "plan/checkpoint_model.h"
#include "plan/planned_run.h"

namespace plimsoll {
namespace {

constexpr std::int64_t kMostMicroBatches = 4096;
constexpr double kFarApart = 1.3;
/// For each choice of modules to checkpoint.
constexpr int kReplays = 6;
/// What a model of checkpoints takes, as many times as the time of a step does.
constexpr std::int64_t kModelling = 1;
/// Blocks in part take a policy function in the user's code: for so much less time alone.
constexpr double kSelectiveGain = 0.98;
/// torch.utils.checkpoint.create_selective_checkpoint_contexts
constexpr TorchVersion kFirstSelective = {2, 4};

int ReplaysWithin(const WorkBudget& budget, const Way& plain) {
  const std::int64_t affordable = budget.left() / std::max<std::int64_t>(1, plain.work);
  return static_cast<int>(std::clamp<std::int64_t>(affordable, 1, kReplays));
}

/// The first index from `begin` to `end` for which `holds`, which then holds for all that follow;
/// `end` where it holds for none. The last is asked first: it decides whether there is any. Where
/// `ends`, the first of those that were asked.
Result<std::size_t> FirstThat(std::size_t begin, std::size_t end,
                              const std::function<Result<bool>(std::size_t)>& holds,
                              const std::function<bool()>& ends) {
  std::size_t found = end;
  while (begin < found && !ends()) {
    const std::size_t at = found == end ? end - 1 : begin + (found - begin) / 2;
    const Result<bool> is = holds(at);
    if (!is) return is.error();
    if (!*is && found == end) return end;
    (*is ? found : begin) = *is ? at : at + 1;
  }
  return found;
}

/// Without those that are hardly more than the one before: each is modelled and replayed.
std::vector<int> Thinned(const std::vector<int>& growing) {
  std::vector<int> thinned;
  for (const int number : growing) {
    const bool far = thinned.empty() || number >= kFarApart * thinned.back();
    if (far || number == growing.back()) thinned.push_back(number);
  }
  return thinned;
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

/// Divisors of the samples of a GPU, growing.
std::vector<int> FamilySearch::NumbersOfMicroBatches(const Choice& base) const {
  const int least = MicroBatchesOf(request_.job, base);
  if (least > 1 || !CanSplit(request_) || Contradiction(Split(request_.job, base, 2))) {
    return {least};
  }
  std::vector<int> numbers;
  for (std::int64_t n = 1; n <= std::min(base.batch, kMostMicroBatches); ++n) {
    if (base.batch % n == 0) numbers.push_back(static_cast<int>(n));
  }
  return numbers;
}

std::optional<Error> FamilySearch::Plain(const Family& family, Standings standings,
                                         WorkBudget& budget, std::vector<Way>& found) {
  const std::vector<int> numbers = NumbersOfMicroBatches(family.base);
  const auto fits = [&](std::size_t at) -> Result<bool> {
    const Result<Way> outcome = evaluator_.Evaluate(Split(request_.job, family.base, numbers[at]));
    if (!outcome) return outcome.error();
    found.push_back(*outcome);
    budget.Spend(outcome->work);
    return outcome->SurelyFits();
  };
  const Result<bool> together = fits(0);
  if (!together) return together.error();
  if (*together || numbers.size() == 1) return std::nullopt;
  const auto is_slow = [&](std::size_t at) -> Result<bool> {
    const Choice choice = Split(request_.job, family.base, numbers[at]);
    const Result<double> us = evaluator_.StepMicroseconds(choice);
    if (!us) return us.error();
    budget.Spend(evaluator_.WorkToTime());
    return *us / double(SamplesOf(request_.job, choice)) >= standings.Limit(SetBy(choice));
  };
  const auto out_of_time = [&] { return evaluator_.OutOfTime(); };
  // More micro-batches take more time and less memory.
  std::size_t end = numbers.size();
  if (standings.Best() != Standings::kNone) {
    const Result<std::size_t> slow = FirstThat(1, end, is_slow, out_of_time);
    if (!slow) return slow.error();
    end = *slow;
  }
  const Result<std::size_t> first = FirstThat(1, end, fits, out_of_time);
  return first ? std::nullopt : std::optional<Error>(first.error());
}

bool FamilySearch::Ends(const WorkBudget& budget) const {
  return budget.spent() || evaluator_.OutOfTime();
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
  for (const int number : Thinned(NumbersOfMicroBatches(family.base))) {
    if (Ends(budget)) break;
    const Choice choice = Split(request_.job, family.base, number);
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
        LeastTime(sets, ScoreOf(*plain), number) / double(SamplesOf(request_.job, choice));
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
  // The most micro-batches take the least memory: they decide whether anything fits at all.
  if (standings.Best() == Standings::kNone) {
    std::stable_sort(candidates->begin(), candidates->end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.plain.choice.batch < b.plain.choice.batch;
                     });
  }
  for (const Candidate& candidate : *candidates) {
    const double limit_us = standings.Limit(WithCheckpoints(candidate.plain.choice));
    if (candidate.least_us >= limit_us && limit_us < Standings::kNone) continue;
    if (Ends(budget)) break;
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
  if (!CanBeSelective(plain.choice) || !whole->score.fits || Ends(budget)) return true;
  budget.Spend(kModelling * evaluator_.WorkToTime());
  const CheckpointSets& in_part = SetsFor(plain.choice, true);
  const double worth_it_us = kSelectiveGain * whole->score.us;
  if (LeastTime(in_part, ScoreOf(plain), MicroBatchesOf(request_.job, plain.choice)) >= worth_it_us)
    return true;
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
    // What is not tried any more is no better than nothing.
    if (evaluator_.OutOfTime()) return ScoreOf(plain);
    const Result<Way> outcome = with(modules);
    if (!outcome) return outcome.error();
    budget.Spend(outcome->work);
    return ScoreOf(*outcome);
  };
  Result<CheckpointChoice> best =
      BestCheckpoints(sets, ScoreOf(plain), score,
                      {.replays = ReplaysWithin(budget, plain),
                       .most_us = most_us,
                       .passes = MicroBatchesOf(request_.job, plain.choice)});
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
