// The search of `plan` against every choice of a reduced space: plan_exhaustive SAMPLES STEP...
// For each step file three budgets (80, 55 and 35 % of what the job takes as captured); all
// precisions, optimizers, settings and numbers of passes, with none, a quarter, half, three
// quarters or all of the blocks checkpointed.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "base/parallel.h"
#include "files/input.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "job/transforms/checkpoint.h"
#include "plan/search.h"

namespace plimsoll {
namespace {

std::vector<Choice> AllChoices(const PlanRequest& request) {
  std::vector<Choice> choices = {{.batch = request.samples}};
  for (const PlanLever* lever : Levers()) {
    if (lever->worth_trying == nullptr) continue;
    const std::size_t before = choices.size();
    for (std::size_t i = 0; i < before; ++i) {
      for (LeverValue& value : lever->worth_trying(request, request.job.variants.front())) {
        if (lever->numerics(request.job, value) > Numerics::kRounding) continue;
        choices.push_back(choices[i].With(lever->name, std::move(value)));
      }
    }
  }
  const std::vector<std::string> blocks =
      CheckpointBlocks(request.job, request.job.variants.front());
  std::vector<Choice> all;
  for (const Choice& base : choices) {
    for (std::int64_t passes = 1; passes <= request.samples; passes *= 2) {
      Choice choice = base;
      choice.batch = request.samples / passes;
      if (passes > 1) {
        choice = choice.With(kAccumulationLever.name, MicroBatchesValue(static_cast<int>(passes)));
      }
      for (std::size_t quarter = 0; quarter <= (blocks.empty() ? 0 : 4); ++quarter) {
        const std::size_t count = quarter * blocks.size() / 4;
        const Choice with =
            count == 0
                ? choice
                : choice.With(
                      kCheckpointingLever.name,
                      ModulesValue({blocks.begin(), blocks.begin() + std::ptrdiff_t(count)}));
        if (!Contradiction(with)) all.push_back(with);
      }
    }
  }
  return all;
}

struct Best {
  double us = 0;
  std::size_t tried = 0;
};

Best Exhaust(const PlanRequest& request) {
  const std::vector<Choice> all = AllChoices(request);
  std::vector<double> us(all.size(), 0);
  Evaluator evaluator(request);
  ParallelFor(all.size(), [&](std::size_t i) {
    const Result<Way> outcome = evaluator.Evaluate(all[i]);
    if (outcome && outcome->SurelyFits()) us[i] = outcome->trial.step_us;
  });
  Best best{.tried = all.size()};
  for (const double one : us) {
    if (one > 0 && (best.us == 0 || one < best.us)) best.us = one;
  }
  return best;
}

bool Compare(const std::string& path, std::int64_t samples) {
  const Result<Job> job = ReadJob(*Input::Open(path));
  if (!job) return fmt::print("{}\n", job.error().ToLine()), false;
  const Gpu gpu = *FindGpu("H200");
  PlanRequest request{.job = *job,
                      .gpu = gpu,
                      .options = {.calibration = Calibration::BuiltIn("H200")},
                      .samples = samples};
  const Result<Way> captured = Evaluator(request).Evaluate({.batch = samples});
  if (!captured) return fmt::print("{}\n", captured.error().ToLine()), false;
  bool good = true;
  for (const int percent : {80, 55, 35}) {
    request.options.limit = captured->trial.needs.reserved.best * percent / 100;
    const auto start = std::chrono::steady_clock::now();
    const Result<Plan> plan = FindPlan(request);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!plan) return fmt::print("{}\n", plan.error().ToLine()), false;
    const Best best = Exhaust(request);
    const double ours = plan->ways.empty() ? 0 : plan->ways.front().trial.step_us;
    // Other results are sought only where nothing else fits, which the reduced space leaves out.
    const bool fine = best.us == 0 || (ours > 0 && ours <= 1.01 * best.us);
    good = good && fine;
    fmt::print(
        "{:44} {:3} % {:7.2f} s {:4} evaluations {:9.2f} ms; of {:4}: {:9.2f} ms {:+6.1f} %{}\n",
        std::filesystem::path(path).filename().string().substr(0, 44), percent, seconds.count(),
        plan->evaluations, ours / 1e3, best.tried, best.us / 1e3,
        best.us > 0 ? 100 * (ours / best.us - 1) : 0.0, fine ? "" : "  WORSE");
  }
  return good;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print("plan_exhaustive SAMPLES STEP...\n"), 2;
  bool good = true;
  for (int i = 2; i < argc; ++i) good = plimsoll::Compare(argv[i], std::atoi(argv[1])) && good;
  return good ? 0 : 1;
}
