#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/parallel.h"
#include "plan/checkpoint_model.h"
#include "plan/frontier.h"
#include "recompute/checkpoint_choice.h"
#include "step/max_batch.h"
#include "step/transforms/accumulate.h"

namespace plimsoll {
namespace {

/// How slow a way may be beside the fastest and still be worth looking for.
constexpr double kWorthShowing = 2;
/// So many families are looked through even where they cannot be the fastest: what comes second is
/// of interest too.
constexpr std::size_t kFamiliesAnyway = 6;
/// Looked through together; the same on every machine, so that the answer is.
constexpr std::size_t kAtOnce = 4;
constexpr std::size_t kMostPasses = 10;
/// For each choice of modules to checkpoint.
constexpr int kReplays = 8;

/// Levers set but for passes and blocks, which are found for each.
struct Family {
  Choice base;
  /// No way of the family takes less for a sample.
  double least_us = 0;
};

double MicrosecondsPerSample(const Outcome& outcome) {
  return outcome.step_us / double(outcome.samples);
}

class Search {
 public:
  explicit Search(const PlanJob& job) : job_(job), evaluator_(job) {}

  Result<Plan> Run() {
    Plan plan;
    if (std::optional<Error> error = Captured(plan)) return *error;
    for (const Numerics most : Tiers()) {
      if (std::optional<Error> error = SearchTier(most)) return *error;
      if (best_us_ < kNone) break;
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
  static constexpr double kNone = std::numeric_limits<double>::max();

  /// Other results only where nothing else fits.
  std::vector<Numerics> Tiers() const {
    if (job_.keep_numerics) return {Numerics::kSame};
    return {Numerics::kRounding, Numerics::kOther};
  }

  /// The job as it was captured, with all samples in one pass; on several GPUs, with DDP.
  Choice Start() const {
    if (job_.gpus == 1) return {.batch = job_.samples};
    return Choice{.batch = job_.samples / job_.gpus}.With(kParallelLever.name,
                                                          fmt::format("ddp:{}", job_.gpus));
  }

  /// The same with one lever set, and as many samples in one pass as that leaves to a GPU.
  Choice With(const Choice& choice, const PlanLever& lever, std::string value) const {
    Choice other = choice.With(lever.name, std::move(value));
    other.batch = std::max<std::int64_t>(1, job_.samples * choice.batch / SamplesOf(other));
    return other;
  }

  std::optional<Error> Captured(Plan& plan) {
    const Result<Outcome> captured = evaluator_.Evaluate(Start());
    if (!captured) return captured.error();
    plan.as_captured = *captured;
    return std::nullopt;
  }

  std::optional<Error> SearchTier(Numerics most) {
    Result<std::vector<Family>> families = Families(most);
    if (!families) return families.error();
    for (std::size_t i = 0; i < families->size(); i += kAtOnce) {
      std::vector<Family> now;
      for (std::size_t k = i; k < std::min(i + kAtOnce, families->size()); ++k) {
        const Family& family = (*families)[k];
        const bool may_win = family.least_us < best_us_;
        const bool of_interest =
            family.least_us < kWorthShowing * best_us_ &&
            (k < kFamiliesAnyway || NumericsOf(job_.step, family.base) == Numerics::kSame);
        if (may_win || of_interest) now.push_back(family);
      }
      if (std::optional<Error> error = SearchTogether(now)) return error;
    }
    return std::nullopt;
  }

  std::optional<Error> SearchTogether(const std::vector<Family>& families) {
    std::vector<std::vector<Outcome>> found(families.size());
    std::vector<std::optional<Error>> failed(families.size());
    const double limit = best_us_ < kNone ? kWorthShowing * best_us_ : kNone;
    ParallelFor(families.size(),
                [&](std::size_t i) { failed[i] = SearchIn(families[i].base, limit, found[i]); });
    for (std::size_t i = 0; i < families.size(); ++i) {
      if (failed[i] && !CannotBeDone(families[i].base, *failed[i])) return failed[i];
      for (Outcome& outcome : found[i]) Keep(std::move(outcome));
    }
    return std::nullopt;
  }

  /// A lever that this job does not allow is left out, and the reason is told. An error without any
  /// lever is one of the job.
  bool CannotBeDone(const Choice& choice, const Error& error) {
    if (choice.set.empty()) return false;
    refused_.insert(error.message);
    return true;
  }

  void Keep(Outcome outcome) {
    if (outcome.surely_fits) best_us_ = std::min(best_us_, MicrosecondsPerSample(outcome));
    found_.push_back(std::move(outcome));
  }

  const Variant& VariantOf(const Choice& choice) const {
    const Result<std::size_t> variant = VariantFor(job_.step, choice);
    return job_.step.variants[variant ? *variant : 0];
  }

  /// Every combination of the levers that are not searched, those that may be fastest first.
  Result<std::vector<Family>> Families(Numerics most) {
    std::vector<Choice> choices = {Start()};
    for (const PlanLever* lever : Levers()) {
      if (lever->worth_trying == nullptr) continue;
      const std::size_t before = choices.size();
      for (std::size_t i = 0; i < before; ++i) {
        for (std::string& value : lever->worth_trying(job_, VariantOf(choices[i]))) {
          if (lever->numerics(job_.step, value) > most) continue;
          if (value == choices[i].Get(lever->name)) continue;
          Choice choice = With(choices[i], *lever, std::move(value));
          if (!Contradiction(choice)) choices.push_back(std::move(choice));
        }
      }
    }
    std::vector<std::optional<Result<double>>> times(choices.size());
    ParallelFor(choices.size(),
                [&](std::size_t i) { times[i] = evaluator_.StepMicroseconds(choices[i]); });
    std::vector<Family> families;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (*times[i]) {
        families.push_back({choices[i], **times[i] / double(SamplesOf(choices[i]))});
      } else if (!CannotBeDone(choices[i], times[i]->error())) {
        return times[i]->error();
      }
    }
    LeaveOutNeedless(families);
    std::stable_sort(families.begin(), families.end(),
                     [](const Family& a, const Family& b) { return a.least_us < b.least_us; });
    return families;
  }

  /// Those that set a lever which changes time alone, and not by a percent: TF32 beside bf16.
  static void LeaveOutNeedless(std::vector<Family>& families) {
    const auto time_of = [&](const Choice& choice) {
      const auto found = std::find_if(families.begin(), families.end(),
                                      [&](const Family& family) { return family.base == choice; });
      return found == families.end() ? kNone : found->least_us;
    };
    std::vector<Family> kept;
    for (const Family& family : families) {
      const std::vector<const PlanLever*> levers = LeversOf(family.base);
      const bool needless = std::any_of(levers.begin(), levers.end(), [&](const PlanLever* lever) {
        return lever->time_alone &&
               family.least_us > 0.99 * time_of(family.base.With(lever->name, ""));
      });
      if (!needless) kept.push_back(family);
    }
    families = std::move(kept);
  }

  /// In how many passes the samples can be gone through: divisors, few of them.
  std::vector<int> PassesFor(std::int64_t samples) const {
    if (CannotAccumulate(job_.step, job_.step.variants.front()) ||
        (job_.keep_numerics && kAccumulationLever.numerics(job_.step, "2") != Numerics::kSame)) {
      return {1};
    }
    std::vector<int> passes;
    for (std::int64_t n = 1; n <= samples && n <= 4096 && passes.size() < kMostPasses; ++n) {
      if (samples % n == 0) passes.push_back(static_cast<int>(n));
    }
    return passes;
  }

  /// As few passes as fit without checkpointing, and for fewer than that the best blocks.
  std::optional<Error> SearchIn(const Choice& base, double limit_us, std::vector<Outcome>& found) {
    for (const int passes : PassesFor(base.batch)) {
      Choice choice = base.With(kAccumulationLever.name, passes > 1 ? std::to_string(passes) : "");
      choice.batch = base.batch / passes;
      if (Contradiction(choice)) return std::nullopt;
      const Result<double> least = evaluator_.StepMicroseconds(choice);
      if (!least) return least.error();
      if (*least / double(SamplesOf(choice)) >= limit_us) return std::nullopt;
      const Result<Outcome> plain = evaluator_.Evaluate(choice);
      if (!plain) return plain.error();
      found.push_back(*plain);
      if (plain->surely_fits) return std::nullopt;
      if (std::optional<Error> error = Checkpoint(*plain, limit_us, found)) return error;
    }
    return std::nullopt;
  }

  /// The best modules to checkpoint, where that may be fast enough.
  std::optional<Error> Checkpoint(const Outcome& plain, double& limit_us,
                                  std::vector<Outcome>& found) {
    const std::shared_ptr<const CheckpointSets> sets = SetsFor(plain.choice);
    if (sets->empty()) return std::nullopt;
    const auto with = [&](const std::vector<std::string>& modules) {
      return evaluator_.Evaluate(
          plain.choice.With(kCheckpointingLever.name, fmt::format("{}", fmt::join(modules, ","))));
    };
    const auto score_of = [](const Outcome& outcome) {
      return CheckpointScore{.fits = outcome.surely_fits,
                             .high = outcome.reserved.best,
                             .room = outcome.room,
                             .us = outcome.step_us};
    };
    const auto score = [&](const std::vector<std::string>& modules) -> Result<CheckpointScore> {
      const Result<Outcome> outcome = with(modules);
      if (!outcome) return outcome.error();
      return score_of(*outcome);
    };
    const Result<CheckpointChoice> best =
        BestCheckpoints(*sets, score_of(plain), score,
                        {.replays = kReplays, .most_us = limit_us * double(plain.samples)});
    if (!best) return best.error();
    if (best->modules.empty()) return std::nullopt;
    const Result<Outcome> outcome = with(best->modules);
    if (!outcome) return outcome.error();
    found.push_back(*outcome);
    if (outcome->surely_fits) limit_us = std::min(limit_us, MicrosecondsPerSample(*outcome));
    return std::nullopt;
  }

  /// Of the job without other levers: what they change in memory is seen by the replays.
  std::shared_ptr<const CheckpointSets> SetsFor(const Choice& choice) {
    const Variant& variant = VariantOf(choice);
    const auto key = std::make_pair(&variant, choice.batch);
    {
      const std::lock_guard lock(mutex_);
      if (const auto made = sets_.find(key); made != sets_.end()) return made->second;
    }
    auto sets = std::make_shared<const CheckpointSets>(
        ModelCheckpointing(job_.step, variant, job_.gpu,
                           {.batch = choice.batch,
                            .torch = TorchFor(job_.step, job_.options),
                            .calibration = job_.options.calibration}));
    const std::lock_guard lock(mutex_);
    return sets_.try_emplace(key, std::move(sets)).first->second;
  }

  /// In one pass, and in as few as fit.
  std::optional<Error> PassesAlone(const Choice& captured, std::vector<Outcome>& tried) {
    for (const int passes : PassesFor(captured.batch)) {
      Choice choice =
          captured.With(kAccumulationLever.name, passes > 1 ? std::to_string(passes) : "");
      choice.batch = captured.batch / passes;
      const Result<Outcome> outcome = evaluator_.Evaluate(choice);
      if (!outcome) return outcome.error();
      tried.push_back(*outcome);
      if (outcome->surely_fits) break;
    }
    return std::nullopt;
  }

  /// The fastest that fits with one lever and no other.
  std::optional<Error> Singles(Plan& plan) {
    const Choice captured = Start();
    std::vector<Outcome> tried;
    if (std::optional<Error> error = PassesAlone(captured, tried)) return error;
    double limit_us = kNone;
    if (std::optional<Error> error = Checkpoint(tried.front(), limit_us, tried)) return error;
    for (const PlanLever* lever : Levers()) {
      if (lever->worth_trying == nullptr) continue;
      for (std::string& value : lever->worth_trying(job_, job_.step.variants.front())) {
        const Numerics numerics = lever->numerics(job_.step, value);
        if (numerics > (job_.keep_numerics ? Numerics::kSame : Numerics::kRounding)) continue;
        const Result<Outcome> one = evaluator_.Evaluate(With(captured, *lever, value));
        if (one) tried.push_back(*one);
      }
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
    const Choice start = Start();
    std::vector<const PlanLever*> changed;
    for (const PlanLever* lever : Levers()) {
      if (choice.Get(lever->name) != start.Get(lever->name)) changed.push_back(lever);
    }
    return changed;
  }

  /// The first way with each of its levers alone, and without it.
  void Worth(Plan& plan) {
    const Choice best = plan.ways.front().choice;
    const Choice start = Start();
    for (const PlanLever* lever : Changed(best)) {
      Choice alone = With(start, *lever, std::string(best.Get(lever->name)));
      Choice without = With(best, *lever, std::string(start.Get(lever->name)));
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
  std::mutex mutex_;
  std::map<std::pair<const Variant*, std::int64_t>, std::shared_ptr<const CheckpointSets>> sets_;
  std::vector<Outcome> found_;
  std::set<std::string> refused_;
  /// For a sample, of what fits for certain.
  double best_us_ = kNone;
};

}  // namespace

Result<Plan> FindPlan(const PlanJob& job) {
  if (job.samples % job.gpus != 0) {
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
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)));
}

}  // namespace plimsoll
