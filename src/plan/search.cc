#include "plan/search.h"

#include <algorithm>

#include "base/parallel.h"
#include "plan/lever.h"
#include "step/transforms/accumulate.h"
#include "step/transforms/checkpoint.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostWays = 6;
/// A way that is slower than the best by more is not worth showing.
constexpr double kWorthShowing = 0.5;

class Search {
 public:
  explicit Search(const PlanJob& job) : job_(job), evaluator_(job) {}

  Result<Plan> Run() {
    const std::vector<Choice> bases = Bases();
    std::vector<std::vector<Outcome>> found(bases.size());
    std::vector<std::optional<Error>> failed(bases.size());
    ParallelFor(bases.size(), [&](std::size_t i) { failed[i] = SearchFrom(bases[i], found[i]); });
    for (const std::optional<Error>& error : failed) {
      if (error) return *error;
    }
    Plan plan;
    Choice captured = job_.AsCaptured();
    captured.batch = job_.samples;
    const Result<Outcome> as_captured = evaluator_.Evaluate(captured);
    if (!as_captured) return as_captured.error();
    plan.as_captured = *as_captured;
    for (std::vector<Outcome>& of_base : found) {
      for (Outcome& outcome : of_base) Add(std::move(outcome), plan);
    }
    Finish(plan);
    plan.evaluations = evaluator_.evaluations();
    return plan;
  }

 private:
  /// Every combination of the levers that are not searched.
  std::vector<Choice> Bases() const {
    std::vector<Choice> bases = {job_.AsCaptured()};
    for (const PlanLever* lever : PlanLevers()) {
      if (job_.keep_numerics && lever->numerics(job_) != Numerics::kSame) continue;
      const std::size_t before = bases.size();
      for (std::size_t i = 0; i < before; ++i) {
        for (Choice& other : lever->settings(job_, bases[i])) bases.push_back(std::move(other));
      }
    }
    return bases;
  }

  /// In how many passes the samples can be gone through: divisors, few of them.
  std::vector<int> PassesFor(std::int64_t samples) const {
    constexpr std::size_t kMost = 10;
    if (job_.keep_numerics && kAccumulationLever.numerics(job_) != Numerics::kSame) return {1};
    std::vector<int> passes;
    for (std::int64_t n = 1; n <= samples && n <= 4096 && passes.size() < kMost; ++n) {
      if (samples % n == 0) passes.push_back(static_cast<int>(n));
    }
    return passes;
  }

  std::optional<Error> SearchFrom(const Choice& base, std::vector<Outcome>& found) {
    const std::vector<std::string> blocks =
        CheckpointBlocks(job_.step, job_.step.variants[base.variant]);
    const std::int64_t samples = job_.samples;
    for (const int passes : PassesFor(samples)) {
      Choice choice = base;
      choice.passes = passes;
      choice.batch = samples / passes;
      const Result<Outcome> plain = evaluator_.Evaluate(choice);
      if (!plain) return plain.error();
      found.push_back(*plain);
      if (plain->surely_fits) return std::nullopt;
      if (blocks.empty()) continue;
      if (std::optional<Error> error = FewestBlocks(choice, blocks, found)) return error;
    }
    return std::nullopt;
  }

  /// The first blocks: they wait longest for their backward. Bisected, since each further one takes
  /// no more.
  std::optional<Error> FewestBlocks(Choice choice, const std::vector<std::string>& blocks,
                                    std::vector<Outcome>& found) {
    const auto with = [&](std::size_t count) {
      choice.checkpointed.assign(blocks.begin(), blocks.begin() + std::ptrdiff_t(count));
      return evaluator_.Evaluate(choice);
    };
    const Result<Outcome> all = with(blocks.size());
    if (!all) return all.error();
    found.push_back(*all);
    if (!all->surely_fits) return std::nullopt;
    std::size_t too_few = 0;
    std::size_t enough = blocks.size();
    while (enough - too_few > 1) {
      const std::size_t middle = (too_few + enough) / 2;
      const Result<Outcome> tried = with(middle);
      if (!tried) return tried.error();
      if (tried->surely_fits) {
        enough = middle;
        found.push_back(*tried);
      } else {
        too_few = middle;
      }
    }
    return std::nullopt;
  }

  /// Keeps the fastest of each set of levers, and what comes closest.
  void Add(Outcome outcome, Plan& plan) const {
    if (!outcome.surely_fits) {
      if (!plan.closest || outcome.high < plan.closest->high) plan.closest = std::move(outcome);
      return;
    }
    const std::vector<const PlanLever*> levers = LeversOf(job_, outcome.choice);
    for (Outcome& way : plan.ways) {
      if (LeversOf(job_, way.choice) != levers) continue;
      if (outcome.SamplesPerSecond() > way.SamplesPerSecond()) way = std::move(outcome);
      return;
    }
    plan.ways.push_back(std::move(outcome));
  }

  void Finish(Plan& plan) const {
    std::stable_sort(plan.ways.begin(), plan.ways.end(), [](const Outcome& a, const Outcome& b) {
      return a.SamplesPerSecond() > b.SamplesPerSecond();
    });
    // A way with more levers than a faster one is no way anybody would take.
    std::vector<Outcome> kept;
    for (const Outcome& way : plan.ways) {
      const std::vector<const PlanLever*> levers = LeversOf(job_, way.choice);
      const bool needless = std::any_of(kept.begin(), kept.end(), [&](const Outcome& better) {
        const std::vector<const PlanLever*> fewer = LeversOf(job_, better.choice);
        return std::all_of(fewer.begin(), fewer.end(), [&](const PlanLever* lever) {
          return std::find(levers.begin(), levers.end(), lever) != levers.end();
        });
      });
      const bool slow =
          !kept.empty() && way.SamplesPerSecond() < kWorthShowing * kept.front().SamplesPerSecond();
      if (!needless && !slow && kept.size() < kMostWays) kept.push_back(way);
    }
    plan.ways = std::move(kept);
    if (!plan.ways.empty()) {
      plan.closest.reset();
    } else if (plan.closest) {
      FindCard(plan);
    }
  }

  void FindCard(Plan& plan) const {
    for (const Gpu& gpu : Gpus()) {
      const Bytes need = plan.closest->high - job_.gpu.context.high + gpu.context.high;
      if (gpu.memory < need) continue;
      if (!plan.smallest_card || gpu.memory < plan.smallest_card->memory) plan.smallest_card = gpu;
    }
  }

  const PlanJob& job_;
  Evaluator evaluator_;
};

}  // namespace

Result<Plan> FindPlan(const PlanJob& job) {
  if (const std::optional<Error> error = CannotAccumulate(job.step)) return *error;
  return Search(job).Run();
}

}  // namespace plimsoll
