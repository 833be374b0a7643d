#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "base/parallel.h"
#include "plan/family.h"
#include "plan/family_search.h"
#include "plan/frontier.h"
#include "plan/standings.h"
#include "step/max_batch.h"

namespace plimsoll {
namespace {

/// So many families are looked through even where they cannot be the fastest: what comes second is
/// of interest too.
constexpr std::size_t kFamiliesAnyway = 6;
/// Looked through together; the same on every machine, so that the answer is.
constexpr std::size_t kAtOnce = 2;

/// Without checkpoints first: that is soon known, and says how fast checkpoints have to be.
class Search {
 public:
  explicit Search(const PlanJob& job) : job_(job), evaluator_(job), within_(job, evaluator_) {}

  Result<Plan> Run() {
    Plan plan;
    const Result<Outcome> captured = evaluator_.Evaluate(StartOf(job_));
    if (!captured) return captured.error();
    plan.as_captured = *captured;
    for (const Numerics most : Tiers()) {
      if (std::optional<Error> error = SearchTier(most)) return *error;
      if (standings_.Best() < Standings::kNone) break;
    }
    if (std::optional<Error> error = Singles(plan)) return *error;
    ArrangeOutcomes(std::move(found_), plan);
    if (!plan.ways.empty()) Worth(plan);
    if (std::optional<Error> error = MakeWhole(plan)) return *error;
    if (plan.closest) FindCard(plan);
    plan.refused.assign(refused_.begin(), refused_.end());
    plan.evaluations = evaluator_.evaluations();
    return plan;
  }

 private:
  /// Other results only where nothing else fits.
  std::vector<Numerics> Tiers() const {
    if (job_.keep_numerics) return {Numerics::kSame};
    return {Numerics::kRounding, Numerics::kOther};
  }

  std::optional<Error> SearchTier(Numerics most) {
    const Result<std::vector<Family>> families = FamiliesOf(job_, most, evaluator_, refused_);
    if (!families) return families.error();
    if (std::optional<Error> error = SearchAll(*families, &FamilySearch::Plain)) return error;
    return SearchAll(*families, &FamilySearch::Checkpointed);
  }

  using HowToSearch = std::optional<Error> (FamilySearch::*)(const Family&, Standings,
                                                             std::vector<Outcome>&);

  /// A few at once, so that those that follow know what these found.
  std::optional<Error> SearchAll(const std::vector<Family>& families, HowToSearch search) {
    for (std::size_t i = 0; i < families.size();) {
      std::vector<const Family*> now;
      for (; i < families.size() && now.size() < kAtOnce; ++i) {
        if (!IsWorthSearching(families[i], i)) continue;
        // Two that set the same levers are rivals: the second one waits for the first.
        if (!now.empty() && SetBy(now.back()->base) == SetBy(families[i].base)) break;
        now.push_back(&families[i]);
      }
      std::vector<std::vector<Outcome>> found(now.size());
      std::vector<std::optional<Error>> failed(now.size());
      ParallelFor(now.size(), [&](std::size_t k) {
        failed[k] = (within_.*search)(*now[k], standings_, found[k]);
      });
      for (std::size_t k = 0; k < now.size(); ++k) {
        if (failed[k] && !CannotBeDone(now[k]->base, *failed[k], refused_)) return failed[k];
        for (Outcome& outcome : found[k]) Keep(std::move(outcome));
      }
    }
    return std::nullopt;
  }

  bool IsWorthSearching(const Family& family, std::size_t place) const {
    const bool may_win = family.least_us < standings_.Best();
    return family.least_us < standings_.Limit(SetBy(family.base)) &&
           (may_win || place < kFamiliesAnyway ||
            NumericsOf(job_.step, family.base) == Numerics::kSame);
  }

  void Keep(Outcome outcome) {
    standings_.Add(outcome);
    found_.push_back(std::move(outcome));
  }

  /// One lever set otherwise than at the start, and no other.
  std::vector<Choice> SingleChoices() const {
    std::vector<Choice> choices;
    for (const PlanLever* lever : Levers()) {
      if (lever->worth_trying == nullptr) continue;
      for (std::string& value : lever->worth_trying(job_, job_.step.variants.front())) {
        const Numerics numerics = lever->numerics(job_.step, value);
        if (numerics > (job_.keep_numerics ? Numerics::kSame : Numerics::kRounding)) continue;
        choices.push_back(WithLever(job_, StartOf(job_), *lever, std::move(value)));
      }
    }
    return choices;
  }

  /// The fastest that fits with one lever and no other.
  std::optional<Error> Singles(Plan& plan) {
    const Family captured{.base = StartOf(job_)};
    std::vector<Outcome> tried;
    if (std::optional<Error> error = within_.Plain(captured, {}, tried)) return error;
    if (!tried.front().surely_fits) {
      const Outcome in_one_pass = tried.front();
      if (const auto helps = within_.CheckpointOne(in_one_pass, tried); !helps)
        return helps.error();
    }
    const std::vector<Choice> choices = SingleChoices();
    std::vector<std::optional<Result<Outcome>>> outcomes(choices.size());
    ParallelFor(choices.size(),
                [&](std::size_t i) { outcomes[i] = evaluator_.Evaluate(choices[i]); });
    for (const std::optional<Result<Outcome>>& outcome : outcomes) {
      if (*outcome) tried.push_back(**outcome);
    }
    for (const PlanLever* lever : Levers()) {
      const Outcome* best = nullptr;
      for (const Outcome& outcome : tried) {
        if (Changed(outcome.choice) != std::vector<const PlanLever*>{lever}) continue;
        if (!outcome.surely_fits) continue;
        if (best == nullptr || outcome.SamplesPerSecond() > best->SamplesPerSecond()) {
          best = &outcome;
        }
      }
      if (best != nullptr) plan.single.push_back(*best);
    }
    for (Outcome& outcome : tried) Keep(std::move(outcome));
    return std::nullopt;
  }

  /// The levers that are set otherwise than at the start.
  std::vector<const PlanLever*> Changed(const Choice& choice) const {
    const Choice start = StartOf(job_);
    std::vector<const PlanLever*> changed;
    for (const PlanLever* lever : Levers()) {
      if (choice.Get(lever->name) != start.Get(lever->name)) changed.push_back(lever);
    }
    return changed;
  }

  /// The first way with each of its levers alone, and without it.
  void Worth(Plan& plan) {
    const Choice best = plan.ways.front().choice;
    const Choice start = StartOf(job_);
    for (const PlanLever* lever : Changed(best)) {
      Choice alone = WithLever(job_, start, *lever, std::string(best.Get(lever->name)));
      Choice without = WithLever(job_, best, *lever, std::string(start.Get(lever->name)));
      // What rests on another lever cannot stand alone.
      const Result<Outcome> a = evaluator_.Evaluate(alone);
      const Result<Outcome> w = evaluator_.Evaluate(without);
      if (!a || !w) continue;
      plan.worth.push_back({lever, *a, *w});
    }
  }

  /// Everything that is shown, with its ranges.
  std::optional<Error> MakeWhole(Plan& plan) {
    std::vector<Outcome*> shown = {&plan.as_captured};
    for (Outcome& way : plan.ways) shown.push_back(&way);
    for (Outcome& single : plan.single) shown.push_back(&single);
    if (plan.closest) shown.push_back(&*plan.closest);
    std::vector<std::optional<Error>> failed(shown.size());
    ParallelFor(shown.size(), [&](std::size_t i) {
      Result<Outcome> whole = evaluator_.EvaluateWhole(shown[i]->choice);
      if (whole) {
        *shown[i] = std::move(*whole);
      } else {
        failed[i] = whole.error();
      }
    });
    for (const std::optional<Error>& error : failed) {
      if (error) return error;
    }
    return std::nullopt;
  }

  void FindCard(Plan& plan) const {
    for (const Gpu& gpu : Gpus()) {
      const Bytes need = plan.closest->device.high - job_.gpu.context.high + gpu.context.high;
      if (gpu.memory < need) continue;
      if (!plan.smallest_card || gpu.memory < plan.smallest_card->memory) plan.smallest_card = gpu;
    }
  }

  const PlanJob& job_;
  Evaluator evaluator_;
  FamilySearch within_;
  std::vector<Outcome> found_;
  Standings standings_;
  std::set<std::string> refused_;
};

}  // namespace

Result<Plan> FindPlan(const PlanJob& job) {
  if (const int passes = CapturedPasses(job.step); job.samples % passes != 0) {
    return Error{.message = fmt::format("{} samples are not {} batches, which the captured step "
                                        "takes before its optimizer's step",
                                        job.samples, passes),
                 .hint = fmt::format("give a --global-batch that is a multiple of {}", passes)};
  }
  if (job.samples / CapturedPasses(job.step) % job.gpus != 0) {
    return Error{.message = fmt::format("{} samples cannot be shared out evenly to {} GPUs",
                                        job.samples, job.gpus),
                 .hint = "give a --global-batch that is a multiple of --gpus"};
  }
  return Search(job).Run();
}

Result<std::int64_t> DefaultSamples(const PlanJob& job) {
  std::int64_t most = 1;
  for (const Variant& variant : job.step.variants) {
    PredictOptions options = job.options;
    options.precision = variant.precision;
    const Result<MaxBatch> found = FindMaxBatch(job.step, job.gpu, options);
    if (!found) return found.error();
    most = std::max(most, found->sure.batch);
  }
  return CapturedPasses(job.step) *
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)));
}

}  // namespace plimsoll
