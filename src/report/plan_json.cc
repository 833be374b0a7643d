#include "plan/lever.h"
#include "report/json_values.h"
#include "report/plan.h"

namespace plimsoll {
namespace {

Json WayJson(const PlanJob& job, const Outcome& way) {
  Json levers = Json::array();
  for (const PlanLever* lever : LeversOf(job, way.choice)) {
    levers.push_back({{"lever", lever->name},
                      {"set_to", lever->describe(job, way.choice)},
                      {"numerics", NumericsName(lever->numerics(job))},
                      {"code", lever->code(job, way.choice)}});
  }
  return {{"precision", job.step.variants[way.choice.variant].precision},
          {"batch", way.choice.batch},
          {"passes", way.choice.passes},
          {"checkpointed", way.choice.checkpointed},
          {"device", way.peak},
          {"high", way.high},
          {"room", way.room},
          {"fits", way.fits},
          {"surely_fits", way.surely_fits},
          {"step_us", std::llround(way.step_us)},
          {"gpu_busy_us", std::llround(way.gpu_busy_us)},
          {"samples_per_second", way.SamplesPerSecond()},
          {"levers", std::move(levers)}};
}

}  // namespace

std::string PlanJson(const PlanJob& job, const Plan& plan) {
  Json ways = Json::array();
  for (const Outcome& way : plan.ways) ways.push_back(WayJson(job, way));
  return Dump(
      {{"schema", "plimsoll.plan/1"},
       {"file", job.step.file},
       {"model", job.step.model},
       {"gpu", job.gpu.name},
       {"samples", job.samples},
       {"keep_numerics", job.keep_numerics},
       {"ways", std::move(ways)},
       {"as_captured", WayJson(job, plan.as_captured)},
       {"closest", plan.closest ? WayJson(job, *plan.closest) : Json(nullptr)},
       {"smallest_card", plan.smallest_card ? Json(plan.smallest_card->name) : Json(nullptr)},
       {"evaluations", plan.evaluations}});
}

}  // namespace plimsoll
