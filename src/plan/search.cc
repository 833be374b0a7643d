#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/parallel.h"
#include "job/answer/max_batch.h"
#include "job/parallel/collective.h"
#include "job/transforms/checkpoint_blocks.h"
#include "plan/family.h"
#include "plan/family_search.h"
#include "plan/frontier.h"
#include "plan/standings.h"

namespace plimsoll {
namespace {

/// So many families are looked through even where they cannot be the fastest: what comes second is
/// of interest too.
constexpr std::size_t kFamiliesAnyway = 6;
/// Looked through together; the same on every machine, so that the answer is.
constexpr std::size_t kAtOnce = 2;
/// What trains otherwise is told where it takes so much of the time of what does not.
constexpr double kWorthOtherwise = 0.9;
/// What may be spent on finding ways, on what would train otherwise, on what single levers do, and
/// on the ranges of what is shown.
constexpr std::int64_t kWorkForWays = 70'000'000;
constexpr std::int64_t kWorkForOtherwise = 10'000'000;
constexpr std::int64_t kWorkForSingles = 10'000'000;
constexpr std::int64_t kWorkForRanges = 15'000'000;
/// So many of what is shown get their ranges whatever that takes.
constexpr std::size_t kLeastWhole = 3;
/// A long step takes so many times as much: every combination of changes is looked through.
constexpr std::int64_t kForLong = 20;

/// Without checkpoints first: that is soon known, and says how fast checkpoints have to be.
class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request), evaluator_(request), within_(request, evaluator_) {}

  Result<Plan> Run() {
    Plan plan;
    FindRefusals();
    const Result<Way> captured = evaluator_.Evaluate(StartOf(request_));
    if (!captured) return captured.error();
    plan.as_captured = *captured;
    for (const Numerics most : Tiers()) {
      if (std::optional<Error> error = SearchTier(Numerics::kSame, most)) return *error;
      if (standings_.Best() == Standings::kNone) continue;
      if (most == Numerics::kRounding) {
        if (std::optional<Error> error = FindOtherwise(plan)) return *error;
      }
      break;
    }
    if (std::optional<Error> error = Singles(plan)) return *error;
    if (standings_.Best() == Standings::kNone) {
      if (std::optional<Error> error = FindSmallest()) return *error;
    }
    do {
      ArrangeWays(request_.job, found_, plan);
    } while (!plan.ways.empty() && FindWorth(plan));
    if (std::optional<Error> error = MakeWhole(plan)) return *error;
    if (PutLeaksLast(plan)) FindWorth(plan);
    if (std::optional<Error> error = MakeRestWhole(plan)) return *error;
    if (plan.closest && !plan.closest->leaves_out_parts) FindCard(plan);
    plan.refused.assign(refused_.begin(), refused_.end());
    plan.evaluations = evaluator_.evaluations();
    plan.work = evaluator_.work();
    plan.combinations = combinations_;
    plan.left_out = left_out_;
    plan.out_of_time = evaluator_.OutOfTime() && left_out_ > 0;
    return plan;
  }

 private:
  /// Other results only where nothing else fits.
  std::vector<Numerics> Tiers() const {
    if (request_.keep_numerics) return {Numerics::kSame};
    return {Numerics::kRounding, Numerics::kOther};
  }

  /// What stands in the way of levers that would be worth trying.
  void FindRefusals() {
    if (request_.keep_numerics) return;
    for (const PlanLever* lever : Levers()) {
      for (const Variant& variant : request_.job.variants) {
        if (lever->why_not == nullptr) break;
        const std::optional<std::string> why = lever->why_not(request_, variant);
        if (why) refused_.insert(*why);
      }
    }
  }

  /// What would be faster with other results: told beside the ways, and not one of them.
  std::optional<Error> FindOtherwise(Plan& plan) {
    std::vector<Way> found = std::exchange(found_, {});
    const Standings standings = standings_;
    const WorkBudget budget = std::exchange(budget_, WorkBudget(Allowed(kWorkForOtherwise)));
    const std::size_t combinations = combinations_;
    const std::size_t left_out = left_out_;
    double limit_us = kWorthOtherwise * standings.Best();
    std::optional<Error> error = SearchTier(Numerics::kOther, Numerics::kOther, limit_us);
    for (const Way& way : found_) {
      if (!way.SurelyFits() || way.MicrosecondsPerSample() >= limit_us) continue;
      if (NumericsOf(request_.job, way.choice) < Numerics::kOther) continue;
      limit_us = way.MicrosecondsPerSample();
      plan.otherwise = way;
    }
    found_ = std::move(found);
    standings_ = standings;
    budget_ = budget;
    combinations_ = combinations;
    left_out_ = left_out;
    return error;
  }

  /// Of families that change results by so much at least and at most, and may take less than this
  /// for a sample.
  std::optional<Error> SearchTier(Numerics least, Numerics most,
                                  double limit_us = Standings::kNone) {
    Result<Families> families = FamiliesOf(request_, least, most, evaluator_, budget_, refused_);
    if (!families) return families.error();
    std::erase_if(families->all, [&](const Family& f) { return f.least_us >= limit_us; });
    combinations_ += families->all.size() + families->left_out;
    left_out_ += families->left_out;
    std::size_t not_plain = 0;
    std::size_t not_checkpointed = 0;
    const std::vector<Family>& all = families->all;
    if (auto error = SearchAll(all, &FamilySearch::Plain, not_plain)) return error;
    if (auto error = SearchAll(all, &FamilySearch::Checkpointed, not_checkpointed)) return error;
    left_out_ += std::max(not_plain, not_checkpointed);
    return std::nullopt;
  }

  /// The smallest configurations until one fits, whatever was spent by then: without them nothing
  /// is said not to fit.
  std::optional<Error> FindSmallest() {
    WorkBudget budget(evaluator_.WorkToTime());
    Result<Families> families =
        FamiliesOf(request_, Numerics::kSame, Tiers().back(), evaluator_, budget, refused_);
    if (!families) return families.error();
    for (const Family& family : families->all) {
      const Choice smallest = CanSplit(request_)
                                  ? Split(request_.job, family.base, int(family.base.batch))
                                  : family.base;
      const Choice recomputed = smallest.With(
          kCheckpointingLever.name,
          ModulesValue(CheckpointBlocks(request_.job, VariantOf(request_.job, smallest))));
      for (const Choice& choice : {smallest, recomputed}) {
        const Result<Way> way = evaluator_.Evaluate(choice);
        if (way) Keep(*way);
        if (!way && !CannotBeDone(request_.job, choice, way.error(), refused_)) return way.error();
      }
      if (standings_.Best() != Standings::kNone) return std::nullopt;
    }
    return std::nullopt;
  }

  using HowToSearch = std::optional<Error> (FamilySearch::*)(const Family&, Standings, WorkBudget&,
                                                             std::vector<Way>&);

  /// A few at once, so that those that follow know what these found.
  /// `left_out` counts those that nothing is left to spend on.
  std::optional<Error> SearchAll(const std::vector<Family>& families, HowToSearch search,
                                 std::size_t& left_out) {
    for (std::size_t i = 0; i < families.size();) {
      std::vector<const Family*> now;
      for (; i < families.size() && now.size() < kAtOnce; ++i) {
        if (!IsWorthSearching(families[i], i)) continue;
        // Two that set the same levers are rivals: the second one waits for the first.
        if (!now.empty() && SetBy(now.back()->base) == SetBy(families[i].base)) break;
        now.push_back(&families[i]);
      }
      if (request_.progress) request_.progress(i, families.size());
      if (budget_.spent() || evaluator_.OutOfTime()) {
        left_out += now.size();
        continue;
      }
      std::vector<std::vector<Way>> found(now.size());
      // Each has its own share, so that what one finds does not depend on how fast the other is.
      std::vector<WorkBudget> budgets(now.size(), WorkBudget(budget_.left() / 2));
      std::vector<std::optional<Error>> failed(now.size());
      ParallelFor(
          now.size(),
          [&](std::size_t k) {
            failed[k] = (within_.*search)(*now[k], standings_, budgets[k], found[k]);
          },
          evaluator_.Threads());
      for (std::size_t k = 0; k < now.size(); ++k) {
        if (failed[k] && !CannotBeDone(request_.job, now[k]->base, *failed[k], refused_)) {
          return failed[k];
        }
        budget_.Spend(budgets[k].used());
        for (Way& outcome : found[k]) Keep(std::move(outcome));
      }
    }
    return std::nullopt;
  }

  bool IsWorthSearching(const Family& family, std::size_t place) const {
    const bool may_win = family.least_us < standings_.Best();
    return family.least_us < standings_.Limit(SetBy(family.base)) &&
           (may_win || place < kFamiliesAnyway ||
            NumericsOfFamily(request_, family.base) == Numerics::kSame);
  }

  void Keep(Way outcome) {
    standings_.Add(outcome);
    found_.push_back(std::move(outcome));
  }

  /// One lever set otherwise than at the start, and no other.
  std::vector<Choice> SingleChoices() const {
    std::vector<Choice> choices;
    for (const PlanLever* lever : Levers()) {
      if (lever->worth_trying == nullptr) continue;
      for (const LeverValue& value : lever->worth_trying(request_, request_.job.variants.front())) {
        const Numerics numerics = lever->numerics(request_.job, value);
        if (numerics > (request_.keep_numerics ? Numerics::kSame : Numerics::kRounding)) continue;
        choices.push_back(WithLever(request_, StartOf(request_), *lever, &value));
      }
    }
    return choices;
  }

  /// The fastest that fits with one lever and no other.
  std::optional<Error> Singles(Plan& plan) {
    const Family captured{.base = Together(request_, StartOf(request_))};
    std::vector<Way> tried;
    WorkBudget budget(Allowed(kWorkForSingles));
    if (std::optional<Error> error = within_.Plain(captured, {}, budget, tried)) return error;
    if (!tried.front().SurelyFits() && !budget.spent() && !evaluator_.OutOfTime()) {
      const Way in_one_pass = tried.front();
      if (const auto helps = within_.CheckpointOne(in_one_pass, budget, tried); !helps)
        return helps.error();
    }
    std::vector<Choice> choices = SingleChoices();
    const auto affordable =
        static_cast<std::size_t>(budget.left() / std::max<std::int64_t>(1, tried.front().work));
    if (choices.size() > affordable) choices.resize(affordable);
    if (evaluator_.OutOfTime()) choices.clear();
    std::vector<std::optional<Result<Way>>> outcomes(choices.size());
    ParallelFor(
        choices.size(), [&](std::size_t i) { outcomes[i] = evaluator_.Evaluate(choices[i]); },
        evaluator_.Threads());
    for (const std::optional<Result<Way>>& outcome : outcomes) {
      if (*outcome) tried.push_back(**outcome);
    }
    for (const PlanLever* lever : Levers()) {
      const Way* best = nullptr;
      for (const Way& outcome : tried) {
        if (Changed(outcome.choice) != std::vector<const PlanLever*>{lever}) continue;
        if (!outcome.SurelyFits()) continue;
        if (best == nullptr || outcome.SamplesPerSecond() > best->SamplesPerSecond()) {
          best = &outcome;
        }
      }
      if (best != nullptr) plan.single.push_back(*best);
    }
    for (Way& outcome : tried) Keep(std::move(outcome));
    return std::nullopt;
  }

  /// The levers that are set otherwise than at the start.
  std::vector<const PlanLever*> Changed(const Choice& choice) const {
    const Choice start = StartOf(request_);
    std::vector<const PlanLever*> changed;
    for (const PlanLever* lever : Levers()) {
      if (choice.TextOf(lever->name) != start.TextOf(lever->name)) changed.push_back(lever);
    }
    return changed;
  }

  /// The first way with each of its levers alone, and without it. Whether one of them, which the
  /// search did not come by, is faster: then it is found.
  bool FindWorth(Plan& plan) {
    const Way& first = plan.ways.front();
    const Choice start = StartOf(request_);
    bool faster = false;
    plan.worth.clear();
    if (budget_.spent() || evaluator_.OutOfTime()) return false;
    for (const PlanLever* lever : Changed(first.choice)) {
      const Choice alone = WithLever(request_, start, *lever, first.choice.Find(lever->name));
      const Choice without = WithLever(request_, first.choice, *lever, start.Find(lever->name));
      // What rests on another lever cannot stand alone; not every number of samples can be split.
      if (SamplesOf(request_.job, alone) != request_.samples ||
          SamplesOf(request_.job, without) != request_.samples) {
        continue;
      }
      const Result<Way> a = evaluator_.Evaluate(alone);
      const Result<Way> w = evaluator_.Evaluate(without);
      if (!a || !w) continue;
      plan.worth.push_back({lever, *a, *w});
      const bool is_new =
          std::ranges::none_of(found_, [&](const Way& known) { return known.choice == without; });
      const bool better =
          is_new && w->SurelyFits() && w->MicrosecondsPerSample() < first.MicrosecondsPerSample() &&
          NumericsOf(request_.job, without) <= NumericsOf(request_.job, first.choice);
      if (better) Keep(*w);
      faster = faster || better;
    }
    return faster;
  }

  /// What is shown, as `predict` has it. Of a long step, or of many micro-batches, less is shown.
  std::optional<Error> MakeWhole(Plan& plan) {
    std::vector<Way*> shown = {&plan.as_captured};
    for (Way& way : plan.ways) shown.push_back(&way);
    if (plan.closest) shown.push_back(&*plan.closest);
    if (plan.otherwise) shown.push_back(&*plan.otherwise);
    for (Way& single : plan.single) shown.push_back(&single);
    if (std::optional<Error> error = EvaluateWhole(shown, kLeastWhole)) return error;
    const auto unknown = [](const Way& way) { return !way.trial.has_ranges; };
    std::erase_if(plan.ways, unknown);
    KeepThoseThatFit(plan);
    std::erase_if(plan.single, unknown);
    if (plan.otherwise && unknown(*plan.otherwise)) plan.otherwise.reset();
    return std::nullopt;
  }

  /// What JSON, the page and --explain show besides.
  std::optional<Error> MakeRestWhole(Plan& plan) {
    if (!request_.shows_all) return std::nullopt;
    std::vector<Way*> shown;
    for (LeverWorth& worth : plan.worth) {
      shown.insert(shown.end(), {&worth.alone, &worth.without});
    }
    for (Way& way : plan.frontier) shown.push_back(&way);
    if (std::optional<Error> error = EvaluateWhole(shown, 0)) return error;
    std::erase_if(plan.worth, [](const LeverWorth& worth) {
      return !worth.alone.trial.has_ranges || !worth.without.trial.has_ranges;
    });
    std::erase_if(plan.frontier,
                  [](const Way& way) { return !way.trial.has_ranges || !way.SurelyFits(); });
    KeepUnbeaten(plan.frontier);
    return std::nullopt;
  }

  /// Those that can be afforded, and `at_least` so many, from the first on.
  std::optional<Error> EvaluateWhole(std::vector<Way*> shown, std::size_t at_least) {
    std::size_t count = 0;
    for (const Way* way : shown) {
      const std::int64_t work = evaluator_.WorkOfWhole(*way);
      if (count >= at_least && work > for_whole_) break;
      for_whole_ -= work;
      ++count;
    }
    shown.resize(count);
    std::vector<std::optional<Error>> failed(shown.size());
    const auto tell = [&](std::size_t i) {
      if (i >= at_least && evaluator_.OutOfTime()) return;
      Result<Way> whole = evaluator_.EvaluateWhole(shown[i]->choice);
      if (whole) {
        *shown[i] = std::move(*whole);
      } else {
        failed[i] = whole.error();
      }
    };
    ParallelFor(shown.size(), tell, evaluator_.Threads());
    for (const std::optional<Error>& error : failed) {
      if (error) return error;
    }
    return std::nullopt;
  }

  /// With all their micro-batches some may not fit.
  static void KeepThoseThatFit(Plan& plan) {
    if (plan.ways.empty()) return;
    const Way first = plan.ways.front();
    std::erase_if(plan.ways, [](const Way& way) { return !way.SurelyFits(); });
    if (plan.ways.empty()) plan.closest = first;
  }
  /// Whether another way is the first now.
  static bool PutLeaksLast(Plan& plan) {
    const bool lasted = plan.Lasts();
    std::ranges::stable_partition(plan.ways, [](const Way& way) { return !way.leak; });
    return plan.Lasts() && !lasted;
  }

  /// In units of work, so that the answer does not depend on the machine.
  std::int64_t Allowed(std::int64_t work) const {
    return evaluator_.IsLong() ? work * kForLong : work;
  }

  /// Of those that are bought or rented in the place of this one.
  void FindCard(Plan& plan) const {
    for (const Gpu& gpu : Gpus()) {
      if (gpu.slice || gpu.unified || gpu.vendor != request_.gpu.vendor) continue;
      const Bytes need =
          plan.closest->trial.needs.device.high - request_.gpu.context.high + gpu.context.high;
      if (gpu.LeastMemory() < need) continue;
      if (!plan.smallest_card || gpu.memory < plan.smallest_card->memory) plan.smallest_card = gpu;
    }
  }

  const PlanRequest& request_;
  Evaluator evaluator_;
  FamilySearch within_;
  std::vector<Way> found_;
  Standings standings_;
  std::set<std::string> refused_;
  WorkBudget budget_{Allowed(kWorkForWays)};
  /// What is left for the figures of what is shown.
  std::int64_t for_whole_ = Allowed(kWorkForRanges);
  std::size_t combinations_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace

FitVerdict Plan::Verdict() const {
  const Way& way = Shown();
  if (way.leak || !way.trial.lower_end_fits) return {FitDecision::kDoesNotFit};
  std::vector<NotFollowed> unknown = way.not_followed;
  if (!way.trial.surely_fits) {
    unknown.push_back({.what = "no configuration is certain to fit"});
  }
  if (unknown.empty()) return {FitDecision::kFits};
  return {FitDecision::kUnknown, std::move(unknown)};
}

Result<Plan> FindPlan(const PlanRequest& request) {
  if (request.gpus > kMostRanks) {
    return Error{.message = fmt::format("{} GPUs are more than can be planned for", request.gpus),
                 .hint = fmt::format("--gpus and --nodes together up to {}", kMostRanks)};
  }
  const int captured = CapturedPasses(request.job);
  if (request.samples / request.gpus % captured != 0 && CannotAccumulate(request.job)) {
    return Error{.message = fmt::format("{} samples a step are not {} micro-batches, as the script "
                                        "accumulates",
                                        request.samples, captured),
                 .hint = fmt::format("give a --global-batch that is a multiple of {}", captured)};
  }
  if (request.samples % request.gpus != 0) {
    return Error{.message = fmt::format("{} samples cannot be shared out evenly to {} GPUs",
                                        request.samples, request.gpus),
                 .hint = "give a --global-batch that is a multiple of --gpus"};
  }
  return Search(request).Run();
}

Result<std::int64_t> DefaultSamples(const PlanRequest& request) {
  std::int64_t most = 1;
  for (const Variant& variant : request.job.variants) {
    PredictOptions options = request.options;
    options.precision = variant.precision;
    const Result<Setting> setting = MakeSetting(request.job, request.gpu, options);
    if (!setting) return setting.error();
    most = std::max(most, LargestPowerThatSurelyFits(*setting));
  }
  return CapturedPasses(request.job) * most;
}

}  // namespace plimsoll
