// Checkpoints of whole modules against those that keep what single calls made, each with nothing
// else changed: selective_checkpoints PERCENT FILE:SAMPLES...
// The budget is so much of what the job holds as captured. A line of JSON for each job, with what
// plimsoll.applying.checkpoints takes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "files/input.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "plan/checkpoint_model.h"
#include "plan/evaluate.h"
#include "plan/family_search.h"
#include "plan/lever.h"
#include "recompute/checkpoint_choice.h"

namespace plimsoll {
namespace {

nlohmann::json Told(const Job& job, const Way& way) {
  nlohmann::json told = {{"step_us", way.trial.step_us},
                         {"fits", way.SurelyFits()},
                         {"allocated", way.trial.needs.allocated.best},
                         {"reserved", way.trial.needs.reserved.best}};
  const LeverValue* value = way.choice.Find(kCheckpointingLever.name);
  if (value == nullptr) return told;
  for (const LeverField& field : kCheckpointingLever.fields(job, *value)) {
    told[std::string(field.name)] = std::get<std::vector<std::string>>(field.is);
  }
  return told;
}

std::optional<Way> Best(const PlanRequest& request, Evaluator& evaluator, const Way& plain,
                        bool selective) {
  const CheckpointSets sets(ModelCheckpointing(request.job, request.job.variants.front(),
                                               request.gpu,
                                               {.batch = plain.choice.batch,
                                                .torch = TorchFor(request.job, request.options),
                                                .calibration = request.options.calibration.get()},
                                               {.selective = selective}));
  const auto with = [&](const std::vector<std::string>& modules) {
    return evaluator.Evaluate(plain.choice.With(kCheckpointingLever.name, ModulesValue(modules)));
  };
  const auto score = [&](const std::vector<std::string>& modules) -> Result<CheckpointScore> {
    const Result<Way> way = with(modules);
    if (!way) return way.error();
    return ScoreOf(*way);
  };
  const Result<CheckpointChoice> choice = BestCheckpoints(sets, ScoreOf(plain), score);
  if (!choice) return std::nullopt;
  Result<Way> way = with(choice->modules);
  return way ? std::optional<Way>(std::move(*way)) : std::nullopt;
}

bool Compare(const std::string& argument, int percent) {
  const std::size_t colon = argument.rfind(':');
  const std::string path = argument.substr(0, colon);
  const std::int64_t samples = std::atoi(argument.substr(colon + 1).c_str());
  const Result<Job> job = ReadJob(*Input::Open(path));
  if (!job) return fmt::print(stderr, "{}\n", job.error().ToLine()), false;
  const Gpu gpu = *FindGpu("H200");
  PlanRequest request{.job = *job,
                      .gpu = gpu,
                      .options = {.calibration = Calibration::BuiltIn("H200")},
                      .samples = samples};
  const Result<Way> captured = Evaluator(request).Evaluate({.batch = samples});
  if (!captured) return fmt::print(stderr, "{}\n", captured.error().ToLine()), false;
  request.options.limit = captured->trial.needs.reserved.best * percent / 100;
  Evaluator evaluator(request);
  const Result<Way> plain = evaluator.Evaluate({.batch = samples});
  if (!plain) return false;
  nlohmann::json line = {{"job", path},
                         {"samples", samples},
                         {"budget", *request.options.limit},
                         {"plain", Told(*job, *captured)}};
  for (const bool selective : {false, true}) {
    const std::optional<Way> best = Best(request, evaluator, *plain, selective);
    if (best) line[selective ? "selective" : "whole"] = Told(*job, *best);
  }
  fmt::print("{}\n", line.dump());
  return true;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print("selective_checkpoints PERCENT FILE:SAMPLES...\n"), 2;
  bool good = true;
  for (int i = 2; i < argc; ++i) good = plimsoll::Compare(argv[i], std::atoi(argv[1])) && good;
  return good ? 0 : 1;
}
